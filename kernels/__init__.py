"""Kernels, each beside its plain-torch reference."""

# With the repository's root as current directory, transformers finds this folder where it looks for the PyPI package
# `kernels`. Some of its releases fail on a package without a version; all refuse one this old.
__version__ = "0"
