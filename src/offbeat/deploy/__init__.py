"""Bodies of `offbeat deploy`: processes, keys, bundles and supervision of a Flower federation."""
