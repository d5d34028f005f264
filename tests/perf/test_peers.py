"""The comparison with peers: real measuring processes, tiny cases, pictures, the README."""

import base64
import copy
import os
import re

import pytest

from gemm.perf import ceilings, client, contenders, machine, plots, readme, tables
from gemm.perf.cases import parse
from gemm.perf.peers import Peers, row

NAMES = ("gemm", "NumPy", "CuPy")


def stand_in(checkout):
    """Environment in which `import gemm` finds the repository's NumPy-backed package."""
    return {"PYTHONPATH": str(checkout[0])}


@pytest.fixture(scope="module")
def result(checkout):
    """A tiny run, NumPy dressed as gemm, with a variable in the environment that slows OpenBLAS."""
    with pytest.MonkeyPatch.context() as patch:
        for name in machine.steering_variables(dict(os.environ)):
            patch.delenv(name)
        patch.setenv("OPENBLAS_CORETYPE", "Prescott")
        cases = parse("square matmul 8,16,24 float32,float64\nv matmul 1x40x40 float32 out=yes")
        run = Peers(cases, NAMES, rounds=5, seconds=1e-3, tiny=True, extra=stand_in(checkout))
        run.run()
        return run.result()


def test_ratios_have_intervals_and_shares(result):
    assert result["complete"] and len(result["rows"]) == 7
    for one in result["rows"]:
        ours, peer = one["contenders"]["gemm"], one["contenders"]["NumPy"]
        assert len(ours["samples"]) == 5 and ours["gflops"] > 0 and ours["first_call"] > 0
        assert peer["ratio"]["low"] <= peer["ratio"]["value"] <= peer["ratio"]["high"]
        assert ours["of_bandwidth"] > 0


def test_steering_variables_are_reported_and_absent_where_it_counts(result):
    assert result["machine"]["steering_variables_removed"] == {"OPENBLAS_CORETYPE": "Prescott"}
    assert "unset" in machine.warnings(result["machine"])[0]
    blas = [p for p in result["pools"]["1"] if p["internal_api"] == "openblas"]
    assert blas and blas[0]["architecture"] != "Prescott" and blas[0]["num_threads"] == 1
    assert "kernel" in tables.kernels(result)[0]
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_VERBOSE"):
        assert name in machine.steering_variables({name: "1", "OPENBLAS_NUM_THREADS": "2"})
    assert machine.steering_variables({"OPENBLAS_NUM_THREADS": "2"}) == {}


def test_a_peer_that_is_not_installed_is_a_reason(result):
    reason = result["rows"][0]["contenders"]["CuPy"]["reason"]
    assert reason.startswith("not available: ")
    assert "CuPy" not in tables.peers_seen(result["rows"])


def test_no_peers_at_all_still_measures_gemm(checkout):
    cases = parse("f matmul 8 float64")
    run = Peers(cases, ("gemm",), rounds=5, seconds=1e-3, tiny=True, extra=stand_in(checkout))
    run.run()
    (only,) = run.rows()
    assert set(only["contenders"]) == {"gemm"} and only["contenders"]["gemm"]["median"] > 0


def test_no_gpu_is_a_reason():
    torch = pytest.importorskip("torch", reason="PyTorch finds the GPU")
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    (case,) = parse("f matmul 8 float32 device=cuda")
    with pytest.raises(contenders.NotAvailable, match="no CUDA device"):
        contenders.Torch().make(case, [])


def test_pictures_and_page_are_whole_and_self_contained(result, tmp_path):
    result = copy.deepcopy(result)
    result["ceilings"]["1"]["fma"] = {"float32": 6e10, "float64": 3e10}
    written = plots.save(result, tmp_path, "x")
    assert [p.name for p in written] == ["x-roofline-1.png", "x-sweep.png", "x.html"]
    assert all(p.read_bytes()[:4] == b"\x89PNG" for p in written[:2])
    page = written[2].read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert base64.b64encode(written[0].read_bytes()).decode() in page
    assert machine.cpu_name() in page


def test_readme_table_is_rewritten_between_the_markers_and_names_the_machine(result, tmp_path):
    file = tmp_path / "README.md"
    file.write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    readme.rewrite(file, result)
    text = file.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text
    assert machine.cpu_name() in text and "| square/matmul/8x8x8/float32 |" in text
    readme.rewrite(file, result)
    assert file.read_text() == text
    file.write_text("nothing here")
    with pytest.raises(readme.NoMarkers):
        readme.rewrite(file, result)


def test_a_crash_costs_one_case(monkeypatch, checkout):
    asked = []

    class Crashing(client.Worker):
        def ask(self, op, **arguments):
            asked.append(op)
            if op == "compare" and asked.count("compare") == 1:
                self._process.kill()
            return super().ask(op, **arguments)

    monkeypatch.setattr("gemm.perf.peers.Worker", Crashing)
    cases = parse("f matmul 8,16 float32")
    run = Peers(cases, NAMES, 5, 1e-3, tiny=True, extra=stand_in(checkout))
    run.run()
    first, second = run.rows()
    assert "signal 9" in first["contenders"]["gemm"]["reason"]
    assert "median" in second["contenders"]["gemm"]
    assert [name for name, _ in run.broken()] == [first["name"]]


def test_what_gemm_has_not_is_a_fault_only_where_everything_is_to_work():
    absent = {"gemm": {"reason": "no such dtype", "kind": "NotAvailable"}}
    wrong = {"gemm": {"reason": "at (0, 0)", "kind": "WrongResult"}}
    here, on_gpu = parse("f matmul 8 float32")[0], parse("f matmul 8 float32 device=cuda")[0]
    for tiny, count in ((False, 1), (True, 2)):
        run = Peers([], tiny=tiny, answers=[(here, absent), (on_gpu, absent), (here, wrong)])
        assert len(run.broken()) == count and "wrong result" in run.broken()[-1][1]


def test_integers_of_two_widths_are_bounded_by_the_wider():
    (case,) = parse("f matmul 100 int8*int32->int32")
    ceiling = {"bandwidth": 1e9, "fma": {"int32": 4e9, "int8": 8e9}}
    ours = row(case, {"gemm": {"samples": [1e-3] * 5}}, ceiling)["contenders"]["gemm"]
    assert ours["of_fma"] == pytest.approx(2e6 / 1e-3 / 4e9)


def test_shares_of_the_ceilings():
    (case,) = parse("f matmul 100 float32")
    answer = {"gemm": {"samples": [1e-3] * 5}, "NumPy": {"samples": [2e-3] * 5}}
    ours = row(case, answer, {"bandwidth": 1e9, "fma": {"float32": 4e9}})["contenders"]
    assert ours["gemm"]["of_fma"] == pytest.approx(2e6 / 1e-3 / 4e9)
    assert ours["gemm"]["of_bandwidth"] == pytest.approx(120e3 / 1e-3 / 1e9)
    assert ours["NumPy"]["ratio"]["value"] == pytest.approx(2)


def test_the_higher_of_two_ceilings_counts():
    low = {"bandwidth": 1.0, "fma": {"float32": 2.0, "int8": "not measured"}}
    high = {"bandwidth": 3.0, "fma": {"float32": 1.0, "int8": "not measured"}}
    best = {"bandwidth": 3.0, "fma": {"float32": 2.0, "int8": "not measured"}}
    assert ceilings.higher(low, high) == ceilings.higher(high, low) == best
    assert ceilings.higher({}, low) == low
    dead = {"bandwidth": None, "fma": {}, "reason": "crashed"}
    assert ceilings.higher(dead, low) == ceilings.higher(low, dead) == low


def test_bandwidth_is_plausible_and_a_missing_ceiling_has_a_reason():
    assert 1e8 < ceilings.copy_bandwidth(1, 2**22, 3) < 1e13
    assert "not measured" in str(ceilings.fma_rate("no such dtype"))


def test_quantities_read_well():
    assert tables.quantity(1.5e-7, "s") == "150 ns"
    assert tables.quantity(0.0123, "s") == "12.3 ms"
    assert tables.quantity(3 * 2**20, "B") == "3.00 MiB"
