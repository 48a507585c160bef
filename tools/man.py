#!/usr/bin/python3
"""Man pages from what the programs say of themselves, so that the two cannot disagree.

usage: man.py BIN_DIR OUT_DIR       writes weir.1, weir-broker.8, weir-worker.8, weir-gateway.8, weir.conf.5
"""
import os, re, subprocess, sys


def said(*words):
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def quote(text):
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text[:1] in ".'" else text


def head(name, section, summary):
    return ['.TH %s %d "" "Weir" "Weir"' % (name.upper(), section), ".SH NAME", "%s \\- %s" % (quote(name), quote(summary))]


def literal(text):
    return [".nf"] + [quote(line) for line in text.rstrip("\n").split("\n")] + [".fi"]


def options(help_text):
    """.TP paragraphs of the lines that begin with a flag, and what continues them."""
    out, text = [], []
    for line in help_text.split("\n"):
        m = re.match(r"  (?:    )?((?:-\w, )?--?\S.*?)(?:  +(\S.*))?$", line)
        if m and line.startswith("  ") and not line.startswith("       " + " " * 10):
            out += [quote(" ".join(text))] if text else []
            out += [".TP", "\\fB%s\\fR" % quote(m[1])]
            text = [m[2]] if m[2] else []
        elif out and line.startswith(" " * 10):
            text.append(line.strip())
    return out + ([quote(" ".join(text))] if text else [])


def program(bin_dir, name, section, summary):
    text = said(os.path.join(bin_dir, name), "--help")
    usage = re.match(r"usage: (.*?)\n\n", text, re.S)[1]
    about = text[len(usage) + 9:].split("\n\n")[0]
    page = head(name, section, summary) + [".SH SYNOPSIS"] + literal("\n".join(u.strip() for u in usage.split("\n")))
    page += [".SH DESCRIPTION", quote(about), ".SH OPTIONS"] + options(text)
    return page + [".SH SEE ALSO", ".BR weir (1),", ".BR weir.conf (5)"]


def weir(bin_dir):
    program_path = os.path.join(bin_dir, "weir")
    verbs = re.findall(r"^  ([a-z]+) ", said(program_path, "help"), re.M)
    page = head("weir", 1, "a pool of LLM inference workers: questions, batches, its state") + [".SH SYNOPSIS", "\\fBweir\\fR VERB [OPTIONS] ..."]
    for verb in verbs:
        if verb not in ("help", "user", "gateway", "serve"):
            text = said(program_path, "help", verb).split("\nexit codes:")[0]
            page += [".SH WEIR %s" % verb.upper()] + literal(text)
    page += [".SH JOBS"] + literal(said(program_path, "help").split("\nand, ")[1].split("\n`weir help")[0])
    page += [".SH WEIR SERVE"] + options(said(program_path, "help", "serve"))
    page += [".SH WEIR USER"] + literal(said(program_path, "help", "user"))
    page += [".SH EXIT STATUS"] + literal(said(program_path, "help").split("exit codes:\n")[1])
    return page + [".SH SEE ALSO", ".BR weir\\-broker (8),", ".BR weir\\-worker (8),", ".BR weir\\-gateway (8),", ".BR weir.conf (5)"]


def configuration(bin_dir):
    page = head("weir.conf", 5, "configuration file of Weir") + [".SH DESCRIPTION", quote(
        "An INI file, read with --config FILE or WEIR_CONFIG=FILE. Every option of a program is a key of its section, without the dashes; what all programs "
        "read stands in [weir]. A flag comes before a variable (WEIR_ and the name in capitals, with underscores), and that before the file. "
        "A comment is a line that begins with # or ;. An unknown key in a program's section is an error.")]
    for section in ("serve", "broker", "worker", "gateway"):
        words = [os.path.join(bin_dir, "weir"), "help", "serve"] if section == "serve" else [os.path.join(bin_dir, "weir-" + section), "--help"]
        keys = re.findall(r"^ +(?:-\w, )?--(?:\[no-\])?([a-z-]+)", said(*words), re.M)
        keys = keys[: keys.index("plan")] if "plan" in keys else keys  # what follows is for trying things by hand
        page += [".SH [%s]" % section.upper(), quote(", ".join(k for k in keys if k not in ("config", "help", "version", "plan", "generate")) + ".")]
    return page + [".SH SEE ALSO", ".BR weir (1),", ".BR weir\\-broker (8)"]


def main():
    bin_dir, out_dir = sys.argv[1:]
    os.makedirs(out_dir, exist_ok=True)
    pages = {
        "weir.1": weir(bin_dir), "weir.conf.5": configuration(bin_dir),
        "weir-broker.8": program(bin_dir, "weir-broker", 8, "keeps a pool of inference workers and shares it out"),
        "weir-worker.8": program(bin_dir, "weir-worker", 8, "runs one model on one device for weir-broker"),
        "weir-gateway.8": program(bin_dir, "weir-gateway", 8, "the ssh front end of a pool, and its jobs"),
    }
    for name, page in pages.items():
        with open(os.path.join(out_dir, name), "w") as f:
            f.write("\n".join(page) + "\n")


main()
