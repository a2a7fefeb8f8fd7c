"""The processes of one program: who they are, how they agree, and what moves their arrays."""
