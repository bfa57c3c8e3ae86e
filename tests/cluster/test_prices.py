"""Prices over time: the lowest of zones and clouds, from every kind of file."""

from __future__ import annotations

import json
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dovetail.cluster.inputs.prices import constant, read_prices
from dovetail.core.errors import InputError

TYPES = ("v100", "p100", "k80")


def spot(instance: str, zone: str, price: object, at: str) -> dict[str, object]:
    return {"InstanceType": instance, "AvailabilityZone": zone, "SpotPrice": str(price), "Timestamp": at}


def history(folder: Path, *spots: dict[str, object]) -> None:
    path = folder / "aws/logs/us-east-1/prices.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"SpotPriceHistory": spots, "NextToken": ""}))


def test_constant_prices_are_given_or_those_of_gcp() -> None:
    prices = constant(("k80", "V100", "l4"), {"k80": 0.2, "l4": None})
    assert prices.price_at(1e9).tolist() == [0.2, 0.74, 1.0]
    assert prices.missing == ("l4",)
    assert prices.next_change(0.0) == inf


def test_aws_is_the_lowest_zone_and_p100_is_told_from_k80(tmp_path: Path) -> None:
    history(
        tmp_path,
        spot("p3.2xlarge", "b", 0.9, "2020-01-01T02:00:00.000Z"),
        spot("p3.2xlarge", "a", 1.0, "2020-01-01T00:00:00.000Z"),
        spot("p3.2xlarge", "b", 3.0, "2020-01-01T05:00:00.000Z"),
        spot("p2.xlarge", "a", 0.2, "2020-01-01T01:00:00.000Z"),
    )
    prices = read_prices(tmp_path, TYPES, ["aws"])
    assert prices.price_at(0.0)[0] == 0.9  # before a zone's first price, that price
    assert prices.price_at(5 * 3600 - 1)[0] == 0.9
    assert prices.next_change(0.0) == 5 * 3600
    assert prices.price_at(5 * 3600)[0] == 1.0
    assert prices.next_change(5 * 3600) == inf
    assert prices.price_at(0.0)[1:].tolist() == pytest.approx([0.3, 0.2])
    cheapest = read_prices(tmp_path, TYPES, ["aws", "gcp"])
    assert cheapest.price_at(0.0).tolist() == [0.74, pytest.approx(0.3), 0.135]
    assert cheapest.next_change(0.0) == inf  # GCP's is lower before and after


def test_azure_is_the_lowest_zone_not_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "azure/logs"
    folder.mkdir(parents=True)
    (folder / "cheap.csv").write_text("Date,NC6,NC6s v2,NC6s v3\n01/02/2020,$0.30,,$1.10\n01/03/2020,$0.10,$0.50,\n")
    (folder / "dear.csv").write_text("Date,NC6,NC6s v3\n01/02/2020,$0.40,$1.00\n01/03/2020,$0.20,$9.00\n")
    prices = read_prices(tmp_path, TYPES, ["azure"])
    assert prices.price_at(0.0).tolist() == [1.0, 0.5, 0.3]
    assert prices.next_change(0.0) == 86400.0
    assert prices.price_at(86400.0).tolist() == [1.1, 0.5, 0.1]


def test_our_table(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time_s,type,price\n0,l4,0.5\n100,l4,0.25\n50,h100,4\n")
    prices = read_prices(path, ("h100", "l4"))
    assert prices.times_s == (0.0, 100.0)
    assert prices.price_at(99.9).tolist() == [4.0, 0.5]
    assert prices.price_at(100.0).tolist() == [4.0, 0.25]
    assert prices.next_change(99.9) == 100.0


def test_a_type_that_nobody_knows_is_refused_where_a_price_is_missing(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time_s,type,price\n0,k80,0.5\n0,a100,2\n0,v10,0.25\n9,v10,0.3\n")
    said = r"prices.csv:4: type: expected a type of the cluster, found 'v10'; did you mean 'v100'"
    with pytest.raises(InputError, match=said):
        read_prices(path, ("k80", "v100"))
    assert read_prices(path, ("k80",)).missing == ()  # it may be of another cluster
    path.write_text("time_s,type,price\n0,a100,2\n")
    assert read_prices(path, ("k80",)).missing == ("k80",)


def test_what_is_wrong_is_said_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "prices.csv"
    path.write_text("time_s,type,price\n5,l4,0.5\n5,l4,0.25\n")
    with pytest.raises(InputError, match=r"prices.csv:3: time_s: expected more than 5, .* found 5"):
        read_prices(path, ("l4",))
    path.write_text("time_s,type,prize\n5,l4,0.5\n")
    with pytest.raises(InputError, match=r"prices.csv:1: unknown column 'prize'; did you mean 'price'"):
        read_prices(path, ("l4",))
    history(tmp_path, spot("p3.2xlarge", "a", "cheap", "2020-01-01T00:00:00.000Z"))
    with pytest.raises(
        InputError, match=r"prices.json:1: SpotPriceHistory.0.SpotPrice: expected a price, found 'cheap'"
    ):
        read_prices(tmp_path, TYPES)
    history(tmp_path, spot("p3.2xlarge", "a", 1.0, "noon"))
    with pytest.raises(InputError, match=r"prices.json:1: SpotPriceHistory.0.Timestamp"):
        read_prices(tmp_path, TYPES)
    with pytest.raises(InputError, match="cloud 'asw': unknown; did you mean 'aws'"):
        read_prices(tmp_path, TYPES, ["asw"])
    with pytest.raises(InputError, match="found none"):
        read_prices(tmp_path, TYPES, ["azure"])
    folder = tmp_path / "azure/logs"
    folder.mkdir(parents=True)
    (folder / "zone.csv").write_text("Date,NC6\n2020-01-02,$0.30\n")
    with pytest.raises(InputError, match=r"zone.csv:2: Date: expected a day as MM/DD/YYYY, found '2020-01-02'"):
        read_prices(tmp_path, TYPES, ["azure"])
    (folder / "zone.csv").write_text("Date,NC6\n01/02/2020,free\n")
    with pytest.raises(InputError, match=r"zone.csv:2: NC6: expected a price such as \$0.90, found 'free'"):
        read_prices(tmp_path, TYPES, ["azure"])


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.integers(0, 50), st.integers(1, 5), min_size=1),
    st.dictionaries(st.integers(0, 50), st.integers(1, 5), min_size=1),
)
def test_prices_hold_until_the_next_change_and_change_there(
    tmp_path_factory: pytest.TempPathFactory, one: dict[int, int], two: dict[int, int]
) -> None:
    path = tmp_path_factory.mktemp("prices") / "prices.csv"
    rows = [f"{at},{name},{price}" for name, steps in (("a", one), ("b", two)) for at, price in sorted(steps.items())]
    path.write_text("\n".join(["time_s,type,price", *rows]) + "\n")
    prices = read_prices(path, ("a", "b"))
    for now in range(52):
        for t, steps in enumerate((one, two)):
            reached = [at for at in steps if at <= now] or [min(steps)]
            expected = steps[max(reached)]
            assert prices.price_at(float(now))[t] == expected
    at_s, seen = 0.0, prices.price_at(0.0).tolist()
    while (at_s := prices.next_change(at_s)) < inf:
        assert prices.price_at(at_s).tolist() != seen
        seen = prices.price_at(at_s).tolist()
