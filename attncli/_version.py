"""The version, read by the build, and where the project lives.

The addresses are those of ``[project.urls]`` in ``pyproject.toml``; reading them from the installed
metadata would add 20 ms to every help.
"""

__all__ = ["DOCUMENTATION", "ISSUES", "__version__"]

__version__ = "0.1.0"
DOCUMENTATION = "https://attncli.github.io/attncli"
ISSUES = "https://github.com/attncli/attncli/issues"
