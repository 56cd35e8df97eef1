"""Reproductions of the papers: their files, the runs that were made, and the comparison with the papers."""
