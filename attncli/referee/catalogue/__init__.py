"""The catalogue of conventions, each file on the mistakes of one step."""
