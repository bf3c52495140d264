"""Pictures as figures of Matplotlib."""

import logging

# When no folder can keep its font cache, Matplotlib writes to stderr as it is imported.
logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
