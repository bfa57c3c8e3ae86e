"""What a policy is shown agrees with the plain definition, at every decision of random runs."""

from __future__ import annotations

from pathlib import Path

from dovetail.core.resources import Pool
from dovetail.core.tasks import Task, TaskGraph
from dovetail.testing.workflow.random_workloads import random_case, read_case
from dovetail.workflow.inputs.costs import CostRules, ModelCost
from dovetail.workflow.policies.base import Place, Wait
from dovetail.workflow.policies.dovetail import Dovetail
from dovetail.workflow.policies.ready import OpenRequest, ReadyNode
from dovetail.workflow.policies.view import View
from dovetail.workflow.simulate import run


class Comparing(Dovetail):
    """Compares the indices of every view with a look at everything."""

    decisions = 0

    def choose(self, view: View) -> Place | Wait | None:
        held = view.residents.held
        for model, cost in view.models.items():
            if cost.width:
                warm = {w for w in view.roomy_windows(model) if all(model in held[gpu] for gpu in w)}
                assert set(view.warm_windows(model)) == warm
                assert len(view.warm_windows(model)) == len(warm)
            holders = view.residents.holders.get(model, {})
            assert set(holders) == {gpu for gpu, models in enumerate(held) if model in models}
        nodes = [queue.nodes() for queue in view.queues.values()]
        assert view.ready_count == sum(map(len, nodes))
        heads = sorted((first[0].rank, first[0].seq, first[0].model) for first in nodes)
        assert [(rank, seq, queue.model) for rank, seq, queue in view.heads()] == heads
        Comparing.decisions += 1
        return super().choose(view)


def test_indices_of_heads_and_warm_windows(tmp_path: Path) -> None:
    for seed in range(80):
        case = random_case(seed)
        run(read_case(case, tmp_path), Comparing, failure_rate=case.failure_rate, retries=case.retries, journal=False)
    assert Comparing.decisions > 500


def test_a_node_may_change_its_place_while_it_waits() -> None:
    view = View(Pool.parse("1", {}), {"llm": ModelCost(8.0, 10.0)}, CostRules())
    graph = TaskGraph("one", [Task("a", "llm")], [])
    nodes = [ReadyNode(OpenRequest(f"r{i}", graph, (1.0,), 0.0, None, 1.0), 0, 0.0, i) for i in range(4)]
    for node in nodes:
        node.rank = float(node.seq)
        view.enqueue(node)
    queue = view.queues["llm"]
    view.move(nodes[0], 2.5)
    assert queue.head is nodes[1]
    assert [node.seq for node in queue.nodes()] == [1, 2, 0, 3] == [node.seq for node in queue.first(9)]
    assert view.heads() == [(1.0, 1, queue)]
    for node in (nodes[1], nodes[2]):
        view.dequeue(node)
    assert (queue.head, queue.count, view.ready_count) == (nodes[0], 2, 2)
    assert [(rank, seq) for rank, seq, _ in view.heads()] == [(2.5, 0)]
