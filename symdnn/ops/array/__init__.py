"""Views, indexing, joins, sorting, reductions."""
