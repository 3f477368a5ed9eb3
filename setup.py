"""Packaging. The top-level folders `engine`, `kernels` and `optimizer` install below `quail_spark`."""

from pathlib import Path

from setuptools import find_packages, setup

MAPPED = ("engine", "kernels", "optimizer")


def mapped_packages(folder: str) -> list[str]:
    """`quail_spark.<folder>` and every package below it."""
    return [f"quail_spark.{folder}"] + [f"quail_spark.{folder}.{name}" for name in find_packages(folder)]


setup(
    name="quail-spark",
    version="0.1.0",
    description="Ask a language model questions about tables in Apache Spark SQL, on a local prefill-only engine.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["quail_spark", "quail_spark.*"])
    + [name for folder in MAPPED for name in mapped_packages(folder)],
    package_dir={f"quail_spark.{folder}": folder for folder in MAPPED},
    package_data={"quail_spark": ["java/*.java", "data/*"]},
    install_requires=[
        "pyspark>=4.0,<4.4",
        "pyarrow>=18",
        "pandas>=2.2",
        "numpy>=1.26",
        "sqlglot>=27",
        "torch>=2.11",
        "triton>=3.6; platform_system == 'Linux'",
        "transformers>=5.5",
        "safetensors>=0.5",
        "huggingface-hub>=1.0",
        "gguf>=0.17",
        "accelerate>=1.0",
    ],
    extras_require={
        "plot": ["matplotlib>=3.8"],
        "connect": ["pyspark[connect]"],
        "dev": [
            "matplotlib>=3.8",
            "pyspark[connect]",
            "pytest>=8",
            "pytest-timeout>=2.3",
            "ruff>=0.12",
            "setuptools>=77",
            "ipykernel>=6.29",
            "nbclient>=0.10",
            "nbformat>=5.10",
        ],
    },
    entry_points={"console_scripts": ["quail-spark = quail_spark.cli:main"]},
)
