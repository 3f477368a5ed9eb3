"""Ask a language model questions about tables in Spark SQL."""

__version__ = "0.1.0"
