"""The version, read by the build and by ``attncli --version``."""

__version__ = "0.1.0"
