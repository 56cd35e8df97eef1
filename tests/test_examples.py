"""Run the programs in `examples/` and compare what they print with the page that shows them."""

from __future__ import annotations

import pathlib
import re

import pytest
from tests.support.pages import PAGES, ROOT, Runner, as_shown, blocks, commands

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CONSOLES = [block for page in PAGES for block in blocks(page) if "run by" in block.marks]
PRINTS = {command: (block, expected) for block in CONSOLES for command, expected in commands(block)}
ENDS = {  # patterns that the output must match for the text to be true
    "stragglers": r"FedAvg, cohorts of 20 .* never .*CA²FL, every 10th arrival +9\d\.\d% +\d+ \(2/2\)",
    "custom_algorithm": r"FedBuff +accuracy +[1-7]\d\.\d%.*MedianBuff +accuracy +9\d\.\d%",
    "custom_loop": r"SGD +accuracy +7\d\.\d%.*not-true distillation +accuracy +8\d\.\d%",
    "gpt_shakespeare": r"version +0 +perplexity +[78]\d\.\d\d .*version +80 +perplexity +(?:1[0-3]|[1-3])\.\d\d ",
    "hugging_face_lora": r"all weights .*→ +[89]\d\.\d%.*LoRA, rank 4 .*→ +[89]\d\.\d%",
    "regression": r"FedBuff +4[3-7]\.\d .*CA²FL +4[3-7]\.\d ",
    "multilabel": r" 0 +[1-5]\d\.\d% .*300 +[89]\d\.\d% ",
    "early_stopping": r"target .*9\d\.\d%  the target was .*patience .* 9[2-5]\.\d%  accuracy did .*a callback asked",
    "personal_head": r"everything shared +[67]\d\.\d .*FedPer +9\d\.\d .*FedRep +9\d\.\d .*fine-tuned +9\d\.\d ",
    "unavailable": r"FedAvg +0 +0 .*MIFA +9\d +9\d .*MIFA, 4 bit +9\d +9\d ",
}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_the_page_shows(path: pathlib.Path, tmp_path: pathlib.Path, runner: Runner) -> None:
    folder, log = tmp_path / "here", tmp_path / "log"
    folder.mkdir()
    code, output = runner(path, folder, log), log.read_text(encoding="utf-8")
    assert code == 0, output
    block, expected = PRINTS[f"python examples/{path.name}"]
    assert as_shown(block, expected, output), output
    assert re.search(ENDS[path.stem], output, flags=re.S), output
    assert not list(folder.iterdir()), "the example left files behind"
