"""Running a local Transformers model over a text, with its attention recorded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncli.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

    from attncli.capture.recorder import Captured

_INSTALL = "pip install 'attncli[torch]' installs PyTorch and Transformers"


def run_model(
    model: str,
    text: str,
    out: str,
    *,
    layers: Collection[int] | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    generate: int = 0,
    limit_bytes: float = 4e9,
) -> Captured:
    """Run a model of Transformers over a text, and record its attention calls.

    Parameters
    ----------
    model : str
        A folder with ``config.json``, weights and a tokenizer. Nothing is downloaded.
    text : str
        What the model reads.
    out : str
        The folder of the dumps.
    layers : collection of int, optional
        Record these layers only.
    dtype : str, optional
        Of the weights: float32, bfloat16 or float16. As stored unless given.
    device : str
    generate : int
        How many tokens to decode greedily afterwards. Each step makes one more call a layer.
    limit_bytes : float
        As in `attncli.capture`.

    Returns
    -------
    Captured

    Raises
    ------
    InputError
        The folder is missing, or holds no such model.
    UsageError
        PyTorch or Transformers is not installed, or the device or dtype is unknown.
    """
    folder = Path(model)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"{model}: expected a folder with a Transformers model (config.json); found none",
            hint="attncli downloads nothing. To fetch a model: "
            "hf download OWNER/NAME --local-dir FOLDER",
        )
    os.environ["HF_HUB_OFFLINE"] = "1"
    try:
        import torch  # noqa: PLC0415
        import transformers  # noqa: PLC0415
    except ImportError as error:
        raise UsageError(f"capture needs {error.name}, which is missing", hint=_INSTALL) from error

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    network, tokenizer = _loaded(transformers, folder, dtype, generate=bool(generate))
    try:
        network.to(device)
    except RuntimeError as error:
        raise UsageError(f"--device {device}: {str(error).splitlines()[0]}") from error
    from attncli.capture.recorder import capture  # noqa: PLC0415

    with torch.inference_mode(), capture(out, layers=layers, limit_bytes=limit_bytes) as captured:
        _read(network, tokenizer, text, captured, generate)
    return captured


def _loaded(transformers: Any, folder: Path, dtype: str | None, *, generate: bool) -> Any:
    """Return the model, ready to be run, and its tokenizer."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        if not generate:
            kind = transformers.AutoModel
        elif config.is_encoder_decoder:
            kind = transformers.AutoModelForSeq2SeqLM
        else:
            kind = transformers.AutoModelForCausalLM
        network = kind.from_pretrained(folder, dtype=dtype or "auto", local_files_only=True)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError, AttributeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise InputError(f"{folder}: Transformers cannot load the model: {reason}") from error
    return network.eval(), tokenizer


def _read(network: Any, tokenizer: Any, text: str, captured: Captured, generate: int) -> None:
    """Run the model over the text once, and then once for each token to generate."""
    inputs = tokenizer(text, return_tensors="pt").to(network.device)
    inputs.pop("token_type_ids", None)
    words = tokenizer.convert_ids_to_tokens(inputs["input_ids"][0])
    if not words:
        raise UsageError("the text has no tokens", hint="give a longer --text")
    captured.tokens = words
    name = "input_ids"
    if network.config.is_encoder_decoder:
        import torch  # noqa: PLC0415

        name, start = "decoder_input_ids", network.config.decoder_start_token_id or 0
        inputs[name] = torch.tensor([[start]], device=network.device)
    results = network(**inputs, **({"use_cache": True} if generate else {}))
    for _ in range(generate):
        token = results.logits[:, -1:].argmax(dim=-1)
        if name == "input_ids":
            captured.tokens = words = [*words, *tokenizer.convert_ids_to_tokens(token[0])]
            inputs["attention_mask"] = inputs["attention_mask"].new_ones(1, len(words))
        inputs[name] = token
        results = network(**inputs, past_key_values=results.past_key_values, use_cache=True)
