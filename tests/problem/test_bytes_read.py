"""What a forward accesses of its operands, by its operators."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from engine.domain.model import Role, Signature
from engine.problem import catalog
from engine.problem.counting.bytes_read import ReadCounter
from engine.problem.reference import Reference

ROWS, WIDTH = 1000, 64
INDICES = torch.randint(0, ROWS, (7,))
PICKED = len(INDICES) * WIDTH

Forward = Callable[[Tensor], object]


def accessed(forward: Forward) -> int:
    """Numbers of a table that a forward accesses."""
    table = torch.randn(ROWS, WIDTH)
    with torch.no_grad(), ReadCounter() as counter:
        forward(table)
    return counter.bytes_of(table) // table.element_size()


@pytest.mark.parametrize(
    ("forward", "numbers"),
    [
        (lambda t: F.embedding(INDICES, t), PICKED),
        (lambda t: F.embedding_bag(INDICES, t, torch.tensor([0, 3])), PICKED),
        (lambda t: t[INDICES], PICKED),
        (lambda t: t.index_select(0, INDICES), PICKED),
        (lambda t: t.gather(0, INDICES[:, None]), len(INDICES)),
        (lambda t: t[-1].relu(), WIDTH),
        (lambda t: t[:, 3:5] * 2, 2 * ROWS),
        (lambda t: t.diagonal().sum(), WIDTH),
        (lambda t: t.view(-1, 8).T[0].contiguous(), ROWS * WIDTH // 8),
        (lambda t: t[2:9].copy_(torch.zeros(7, WIDTH)), PICKED),
        (lambda t: t.index_copy_(0, torch.arange(7), torch.zeros(7, WIDTH)), PICKED),
        (lambda t: F.nll_loss(t, torch.randint(0, WIDTH, (ROWS,))), ROWS),
        (lambda t: (t[0] + t[1], t[1] * 2), 3 * WIDTH),
        (lambda t: t.sum() + t.sum(), ROWS * WIDTH),
        (lambda t: t.relu_(), ROWS * WIDTH),
        (lambda t: torch.cat([torch.zeros(2, WIDTH), t]), ROWS * WIDTH),
        (lambda t: torch.scatter(t, 0, INDICES[:, None], 1.0), ROWS * WIDTH),
        (lambda t: t.expand(3, ROWS, WIDTH).sum(), ROWS * WIDTH),
        (lambda t: t.shape, 0),
    ],
)
def test_lookups_and_slices_access_a_part(forward: Forward, numbers: int) -> None:
    assert accessed(forward) == numbers


def signature(name: str) -> Signature:
    problem = catalog.find(name)
    return Reference(problem, problem.workloads[0]).signature()


@pytest.mark.parametrize("name", ["softmax", "layernorm", "matmul_fp16", "gqa_decode_bf16"])
def test_a_problem_that_reads_all_of_its_operands_moves_them_all(name: str) -> None:
    assert signature(name).bytes_moved == 0


def test_a_lookup_moves_what_it_picks(tmp_path_factory: pytest.TempPathFactory) -> None:
    file = tmp_path_factory.mktemp("lookup") / "lookup.py"
    file.write_text(
        "import torch\nfrom torch import nn\n\n\n"
        "class Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.table = nn.Embedding(50000, 16)\n\n"
        "    def forward(self, x):\n        return self.table(x)\n\n\n"
        "def get_inputs():\n    return [torch.randint(0, 50000, (8,))]\n\n\ndef get_init_inputs():\n    return []\n"
    )
    found = signature(str(file))
    roles = {o.role for o in found.operands}
    assert roles == {Role.INPUT, Role.PARAMETER, Role.OUTPUT}
    assert found.bytes_moved == 8 * 8 + 2 * 8 * 16 * 4
