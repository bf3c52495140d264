"""Modules of cases fill one table, so they are imported once, as `referee.cases_…`."""

collect_ignore_glob = ["[!t]*.py"]
