"""The table of builders: what is said of a name that it does not have."""

import pytest

from symdnn.errors import SymdnnError
from symdnn.graph.operators import operator


@pytest.mark.parametrize(
    ("name", "advice"), [("sigmoidd", "did you mean 'sigmoid'?"), ("qqqq", "OPERATORS")]
)
def test_a_builder_that_is_not_there(name: str, advice: str):
    with pytest.raises(SymdnnError) as raised:
        operator(name)
    assert advice in str(raised.value)
