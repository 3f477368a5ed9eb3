"""The prefill-only engine. Importing this package imports neither torch nor transformers."""
