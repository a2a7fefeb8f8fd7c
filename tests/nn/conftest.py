"""The scripts that make PyTorch's values need PyTorch, which tests do not: they are no tests."""

collect_ignore_glob = ["make_*.py"]
