"""The losses of other projects that the benchmark compares with, each as forward(logits, labels) and
forward_backward(logits, labels) on the logits of one rank, [rows, vocab / tp].

cross_entropy, loss_parallel, torchtitan and megatron are called as their releases have them. softplus_recompute is
written here from its definition (docs/methods.md), since no release has it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

Call = Callable[[Tensor, Tensor], Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Loss:
    method: str
    mode: str
    forward: Call | None  # the summed loss; no gradient will be asked for
    forward_backward: Call  # the summed loss, and its gradient in the type of the logits
    overwrites_logits: bool = False


@dataclass(frozen=True)
class Ranks:
    """The ranks that share a row."""

    tp: int
    vocab: int  # of all ranks
    mesh: object  # torch's DeviceMesh of the tp ranks


def _through_autograd(loss: Call) -> Call:
    def forward_backward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logits.detach().requires_grad_()
        total = loss(leaf, labels)
        (gradient,) = torch.autograd.grad(total, leaf)
        return total.detach(), gradient

    return forward_backward


def _without_grad(loss: Call) -> Call:
    def forward(logits: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            return loss(logits, labels)

    return forward


def _loss(method: str, mode: str, call: Call, **options) -> Loss:
    return Loss(method, mode, _without_grad(call), _through_autograd(call), **options)


def _compile(function):
    return torch.compile(function, fullgraph=True, dynamic=False)


# F.cross_entropy: of fp32 copies, as trainers call it, and of the logits as they are, whose bf16 result is coarser.


def _cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), labels, reduction="sum")


def _cross_entropy_native(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="sum")


def _one_graph(loss: Call) -> Call:
    """Loss and gradient compiled together: the upstream gradient is known to be 1."""

    @_compile
    def both(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        gradient, total = torch.func.grad_and_value(lambda z: loss(z, labels))(logits)
        return total, gradient

    def forward_backward(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            return both(logits, labels)

    return forward_backward


# The softplus form, which keeps the logits and four numbers a row, and makes exp again in backward.


def _softplus_statistics(logits: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    z = logits.float()
    top = z.amax(dim=1, keepdim=True)
    target = z.gather(1, labels[:, None]) - top
    if torch.compiler.is_compiling():
        # int32 compares on twice the lanes of int64: 1.5 times the speed.
        classes = torch.arange(z.shape[1], dtype=torch.int32, device=z.device)
        exps = torch.where(classes == labels[:, None].int(), 0.0, (z - top).exp())
    else:
        exps = (z - top).exp_()
        exps[torch.arange(len(labels), device=z.device), labels] = 0.0
    others = exps.sum(dim=1, keepdim=True)
    return F.softplus(others.log() - target), top, target, others, others + target.exp()


def _softplus_gradient(logits: Tensor, labels: Tensor, row: tuple[Tensor, ...], upstream: Tensor) -> Tensor:
    top, target, others, total = row
    p = target.exp() / total
    at_target = torch.where(p < 0.25, p - 1.0, -others / total) * upstream
    if torch.compiler.is_compiling():
        gradient = ((logits.float() - top).exp() * (upstream / total)).to(logits.dtype)
    else:
        gradient = (logits - top).exp_().mul_(upstream / total).to(logits.dtype)
    # scatter_ on bf16 takes as long as all the rest.
    gradient[torch.arange(len(labels), device=labels.device), labels] = at_target.to(logits.dtype).squeeze(1)
    return gradient


def _softplus(statistics, gradient) -> Call:
    class Softplus(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits: Tensor, labels: Tensor) -> Tensor:
            losses, *row = statistics(logits, labels)
            ctx.save_for_backward(logits, labels, *row)
            return losses.sum()

        @staticmethod
        def backward(ctx, upstream: Tensor) -> tuple[Tensor, None]:
            logits, labels, *row = ctx.saved_tensors
            return gradient(logits, labels, tuple(row), upstream), None

    return Softplus.apply


# Vocab-parallel losses: each rank has its columns and calls with all others.


def _loss_parallel(ranks: Ranks) -> Loss:
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        sharded = DTensor.from_local(logits.float(), ranks.mesh, [Shard(1)], run_check=False)
        return F.cross_entropy(sharded, labels, reduction="sum").to_local()

    # Backward, too, must run inside the context.
    def inside(call: Call) -> Call:
        def run(logits: Tensor, labels: Tensor):
            with loss_parallel():
                return call(logits, labels)

        return run

    return Loss("loss_parallel", "eager", inside(_without_grad(loss)), inside(_through_autograd(loss)))


def _torchtitan(ranks: Ranks) -> Call:
    from torchtitan.components.loss import _LossParallelCrossEntropy

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return _LossParallelCrossEntropy.apply(logits.float(), labels, dist.group.WORLD, ranks.vocab, "sum")

    return loss


# Megatron takes [sequence, batch, vocab / tp]. Given fp32 it works in place, on the caller's logits.


def _megatron(ranks: Ranks) -> Call:
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.cross_entropy import vocab_parallel_cross_entropy

    if not parallel_state.model_parallel_is_initialized():
        parallel_state.initialize_model_parallel(tensor_model_parallel_size=ranks.tp)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return vocab_parallel_cross_entropy(logits[:, None], labels[:, None]).sum()

    return loss


def _megatron_fused() -> Call:
    from megatron.core.fusions.fused_cross_entropy import fused_vocab_parallel_cross_entropy

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return fused_vocab_parallel_cross_entropy(logits[:, None], labels[:, None], dist.group.WORLD).sum()

    return loss


def losses(dtype: torch.dtype, ranks: Ranks, only: list[str]) -> list[Loss]:
    """Every loss that takes logits of this type on this many ranks, or those of the names "method.mode"."""
    in_place = dtype == torch.float32
    makers = {
        "loss_parallel.eager": lambda: _loss_parallel(ranks),
        "torchtitan.eager": lambda: _loss("torchtitan", "eager", _torchtitan(ranks)),
        "torchtitan.compiled": lambda: _loss(
            "torchtitan", "compiled", torch.compile(_torchtitan(ranks), dynamic=False)
        ),
        "megatron.eager": lambda: _loss("megatron", "eager", _megatron(ranks), overwrites_logits=in_place),
        # Its fused form calls torch.compile itself.
        "megatron.compiled": lambda: _loss("megatron", "compiled", _megatron_fused(), overwrites_logits=in_place),
    }
    if ranks.tp == 1:
        makers |= {
            "cross_entropy.eager": lambda: _loss("cross_entropy", "eager", _cross_entropy),
            "cross_entropy.compiled": lambda: _loss("cross_entropy", "compiled", _compile(_cross_entropy)),
            "cross_entropy.one_graph": lambda: Loss("cross_entropy", "one_graph", None, _one_graph(_cross_entropy)),
            "softplus_recompute.eager": lambda: _loss(
                "softplus_recompute", "eager", _softplus(_softplus_statistics, _softplus_gradient)
            ),
            "softplus_recompute.compiled": lambda: _loss(
                "softplus_recompute",
                "compiled",
                _softplus(_compile(_softplus_statistics), _compile(_softplus_gradient)),
            ),
        }
        if dtype != torch.float32:
            makers |= {
                "cross_entropy_native.eager": lambda: _loss("cross_entropy_native", "eager", _cross_entropy_native),
                "cross_entropy_native.compiled": lambda: _loss(
                    "cross_entropy_native", "compiled", _compile(_cross_entropy_native)
                ),
            }
    return [make() for name, make in makers.items() if not only or name in only]
