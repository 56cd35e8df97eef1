"""The Python interface for scripts and notebooks: runs, sweeps and comparisons as objects with tables and figures.

`import offbeat as ob` has all of it: `ob.run`, `ob.load`, `ob.sweep`, `ob.compare`. The modules are imported one by
one, because running an experiment needs only torch and NumPy.
"""
