"""Pictures as figures of Matplotlib."""

import logging

# Where no folder can keep its cache of fonts, Matplotlib says so on stderr as it is imported.
logging.getLogger("matplotlib").setLevel(logging.CRITICAL)
