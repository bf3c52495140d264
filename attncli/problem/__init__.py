"""The checked question: what `attncli.pose` makes of arguments, and every rule they keep."""
