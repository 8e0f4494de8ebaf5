"""Medians, ratios and the table in docs/benchmarks, from rounds of figures."""

import statistics
import textwrap

LLAMA = ("llama.cpp Q4_0", "llama.cpp Q4_0 pure")


def summarise(rounds, prompts):
    """{engine: {row: {median, min, max}}}, each figure in every row that it applies to."""
    rows = [f"{kind} {prompt}" for kind in ("prefill", "decode after") for prompt in prompts]
    summary = {}
    for engine in rounds[0]:
        summary[engine] = {}
        for row in rows:
            # mlx-lm has one figure for all prompts.
            values = [figures.get(row, figures.get(row.split()[0])) for figures in (turn[engine] for turn in rounds)]
            if None not in values:
                summary[engine][row] = spread(values)
    return summary


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(summary):
    """Lanner's medians over each peer's, by row; over the faster of llama.cpp's two files."""
    result = {}
    for engine in ("Lanner", "Lanner int8"):
        for peer, names in (("llama.cpp", LLAMA), ("mlx-lm", ("mlx-lm",))):
            for row, ours in summary.get(engine, {}).items():
                theirs = [summary[name][row]["median"] for name in names if row in summary.get(name, {})]
                if theirs:
                    name = peer if engine == "Lanner" else f"{engine} / {peer}"
                    result.setdefault(name, {})[row] = ours["median"] / max(theirs)
    return result


def over(peer):
    """The title of a key of `ratios`."""
    return peer if " / " in peer else f"Lanner / {peer}"


def table(report):
    summary, ratio = report["summary"], report["ratios"]
    settings, machine, engines = report["settings"], report["machine"], list(report["summary"])
    lines = [
        f"# {report['shape']}: {', '.join(engines)}",
        "",
        wrap(
            f"Tokens per second: median (min to max) of {settings['rounds']} interleaved rounds of all engines, "
            f"one sequence at a time, on {settings['threads']} threads pinned to the same cores. {machine['cpu']}, "
            f"Linux. Made by `benchmarks/peers/run.py`; raw figures in [{report['shape']}.json]({report['shape']}.json)."
        ),
        "",
        f"| | {' | '.join(engines)} |{''.join(f' {over(peer)} |' for peer in ratio)}",
        f"|---|{'---|' * (len(engines) + len(ratio))}",
    ]
    for row in next(iter(summary.values())):
        cells = [show(summary[engine].get(row)) for engine in engines]
        cells += [f"{digits(ratio[peer][row])}x" if row in ratio[peer] else "" for peer in ratio]
        lines.append(f"| {title(row, settings)} | {' | '.join(cells)} |")
    lines.append(f"| weights a token reads (MB) | {' | '.join(weights(report, e) for e in engines)} |{' |' * len(ratio)}")
    lines.append(f"| share of read bandwidth, decode | {' | '.join(share(report, e) for e in engines)} |{' |' * len(ratio)}")
    lines += ["", *notes(report)]
    return "\n".join(lines)


def wrap(text, indent=""):
    return textwrap.fill(text, 100, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def title(row, settings):
    kind, prompt = row.rsplit(" ", 1)
    return f"prefill {prompt} tokens" if kind == "prefill" else f"decode {settings['generate']} tokens after {prompt}"


def show(figure):
    if figure is None:
        return ""
    return f"{digits(figure['median'])} ({digits(figure['min'])} to {digits(figure['max'])})"


def digits(number):
    """Three significant digits; whole numbers have all."""
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def weights(report, engine):
    read = report["weights"][engine]
    return f"{read / 1e6:.0f}" if read else "-"


def share(report, engine):
    """Of the first decode row and of the best measured bandwidth: other processes lowered the rest."""
    if not report["weights"][engine]:
        return "-"
    row = next(row for row in report["summary"][engine] if row.startswith("decode"))
    rate = report["summary"][engine][row]["median"]
    return f"{report['weights'][engine] * rate / (report['read_gb_s']['max'] * 1e9):.1%}"


def notes(report):
    settings, read = report["settings"], report["read_gb_s"]
    lines = [f"Read bandwidth of those threads, measured in every round with memchr: {show(read)} GB/s. Other processes took at "
             f"most {report['others']:.0%} of these cores while an engine ran."]
    if any(name in report["summary"] for name in LLAMA):
        lines.append("llama.cpp: `Q4_0` is what its quantize makes by default, with the output matrix in Q6_K; `pure` has that in "
                     "Q4_0 too. Ratios are against the faster of the two.")
    if "mlx-lm" in report["summary"]:
        prompt, generate = settings["mlx_tokens"]
        lines.append(f"mlx-lm, being slow, gets a prompt of {prompt} and generates {generate} tokens, for every row.")
    if "Lanner int8" in report["summary"]:
        lines.append("Lanner int8: with `--precision int8`, which rounds activations to integers of 8 bits instead of 16, as llama.cpp "
                     "does.")
    lines += [f"{name}: {version}." for name, version in report["versions"].items()]
    return [wrap(f"- {line}", "  ") for line in lines]


def differences(old, new):
    """(peer, row, stored ratio, new ratio) of every stored ratio; a missing one counts as 0."""
    return [(peer, row, ratio, new.get(peer, {}).get(row, 0.0)) for peer, rows in old.items() for row, ratio in rows.items()]
