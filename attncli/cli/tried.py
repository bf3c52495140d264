"""What users try, and what serves here: options and commands under other names."""

from __future__ import annotations

__all__ = ["COMMANDS", "OPTIONS"]

_PLAIN = ("--plain", "--plain computes with scale 1")
_TOLERANCE = ("--atol", "--atol and --rtol say what passes")
_DRAWN = ("--what", "--what scores draws the scores; compute --show prints numbers")
_UNCOLOURED = ("--color", "--color never prints no colours")
_DIGITS = ("--digits", "--digits sets how many decimals are shown")
_FILES = ("--mask", "files have no option in front: attncli compute Q K V")
_ONE_QUERY = (
    ("--rows", "--rows draws one query, or some; attncli explain --query follows one"),
    ("--mask", "attncli explain --query follows one query; files have no option in front"),
)
_WEIGHTS = (
    ("--show", "--show weights prints them"),
    ("--what", "weights are drawn unless --what says scores"),
)
_SIZE = ("--size", "--size sets the inches, --dpi how many dots an inch has")
_FIXED = (
    "--cmap",
    "--cmap sets the colours, --dpi the dots an inch; the rest may be changed in an .svg file",
)
_MAP = ("--cmap", "here it is --cmap")
_AXES = (
    "--cmap",
    "the axes are always Queries and Keys; --query-labels and --key-labels name their places",
)
# By the options that a command has, what serves; the first that it has is told.
OPTIONS = {
    "--no-scale": (_PLAIN,),
    "--unscaled": (_PLAIN,),
    "--no-scaling": (_PLAIN,),
    "--temperature": (("--scale", "--scale gives 1/√D divided by the temperature"),),
    "--json": (
        ("--format", "--format json prints JSON"),
        ("--out", "compute --format json prints JSON"),
    ),
    "--scores": (("--show", "--show scores prints the scores"), _DRAWN),
    "--show": (_DRAWN,),
    "--weights": _WEIGHTS,
    "--softmax": (
        ("--show", "the softmax is always taken; --show scores prints what it is taken of"),
        ("--what", "the softmax is always taken; --what scores draws what it is taken of"),
    ),
    "--format": (("--what", "compute --format prints numbers; --out names a picture's format"),),
    "--labels": (
        ("--tokens", "--tokens names queries and keys alike, --query-labels and --key-labels each"),
    ),
    "--no-color": (_UNCOLOURED,),
    "--no-colour": (_UNCOLOURED,),
    "--tol": (_TOLERANCE,),
    "--tolerance": (_TOLERANCE,),
    "--decimals": (_DIGITS,),
    "--round": (_DIGITS,),
    "--row": (("--query", "--query names the query"), *_ONE_QUERY),
    "--query": _ONE_QUERY,
    "--key": (_FILES,),
    "--value": (_FILES,),
    "--q": (_FILES,),
    "--k": (_FILES,),
    "--v": (_FILES,),
    "--savefig": (("--out", "--out writes the picture into a file"),),
    "--figsize": (_SIZE,),
    "--width": (_SIZE,),
    **dict.fromkeys(("--font", "--fontsize", "--font-size", "--linewidth", "--grid"), (_FIXED,)),
    **dict.fromkeys(("--dark", "--theme", "--style", "--colorbar", "--transparent"), (_FIXED,)),
    **dict.fromkeys(("--colormap", "--colourmap", "--palette"), (_MAP,)),
    **dict.fromkeys(("--xlabel", "--ylabel", "--x-label", "--y-label"), (_AXES,)),
}
COMMANDS = {
    **dict.fromkeys(("plot", "draw", "show", "picture", "visualize", "visualise"), "heatmap"),
    **dict.fromkeys(("softmax", "attention", "attend", "run", "calc", "calculate"), "compute"),
    **dict.fromkeys(("verify", "validate", "test", "judge", "diagnose"), "check"),
    **dict.fromkeys(("inspect", "describe", "shape", "ls"), "info"),
    **dict.fromkeys(("compare", "diff"), "check, or heatmap --minus"),
    "help": "--help",
}
