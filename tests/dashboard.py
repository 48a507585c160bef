#!/usr/bin/env python3
"""docker/grafana and docker/compose.yml as Grafana and compose would read them: nothing is there that Grafana's schema does not know, units and kinds of
panels are its own, and what the services call each other is what they are called.  Run by tests/dashboard.sh, which has the packages."""
import json, os, sys

import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models import dashboard, units

DOCKER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../docker")
PANELS = {"row", "stat", "timeseries"}


def load(name):
    with open(os.path.join(DOCKER, name)) as f:
        return json.load(f) if name.endswith(".json") else yaml.safe_load(f)


def lost(given, kept, path=""):
    """What of given is not in kept: the schema's types keep what they know."""
    if isinstance(given, dict) and isinstance(kept, dict):
        for key, value in given.items():
            yield from lost(value, kept[key], path + "." + key) if key in kept else [path + "." + key]
    elif isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        for i, (a, b) in enumerate(zip(given, kept)):
            yield from lost(a, b, "%s[%d]" % (path, i))
    elif given != kept:
        yield "%s: %r became %r" % (path, given, kept)


def through_the_schema(given):
    return list(lost(given, json.loads(JSONEncoder().encode(dashboard.Dashboard.from_json(given)))))


def check_dashboard():
    board = load("grafana/dashboard.json")
    assert through_the_schema(board) == [], through_the_schema(board)
    wrong = json.loads(json.dumps(board))
    wrong["panels"][1]["gridPoss"] = {}
    assert through_the_schema(wrong) == [".panels[1].gridPoss"], through_the_schema(wrong)
    known = {v for k, v in vars(units).items() if isinstance(v, str) and not k.startswith("_")}
    seen, taken = set(), set()
    for p in board["panels"]:
        assert p["type"] in PANELS and p["id"] not in seen and p["title"], p
        seen.add(p["id"])
        unit = p.get("fieldConfig", {}).get("defaults", {}).get("unit")
        assert unit is None or unit in known, (p["title"], unit)
        g = p["gridPos"]
        assert g["x"] + g["w"] <= 24, p["title"]
        cells = {(x, y) for x in range(g["x"], g["x"] + g["w"]) for y in range(g["y"], g["y"] + g["h"])}
        assert not cells & taken, ("two panels in one place", p["title"])
        taken |= cells
        assert p["type"] == "row" or p["targets"] and all(t["datasource"]["uid"] == "${datasource}" for t in p["targets"]), p["title"]
    print("%d panels: nothing but what Grafana's schema knows" % len(seen))


def volume(service, source):
    """Where a service sees a file or folder of docker/."""
    found = [v.split(":")[1] for v in service["volumes"] if v.split(":")[0] == source]
    assert len(found) == 1 and os.path.exists(os.path.join(DOCKER, source)), (source, found)
    return found[0]


def check_compose():
    services = load("compose.yml")["services"]
    assert set(services) == {"weir", "prometheus", "grafana"}, services.keys()
    assert volume(services["prometheus"], "./prometheus") == "/etc/prometheus"
    for job in load("prometheus/prometheus.yml")["scrape_configs"]:
        for target in job["static_configs"][0]["targets"]:
            name, port = target.split(":")
            with open(DOCKER + "/Dockerfile") as f:
                text = f.read()
            assert name in services and port in text[text.index("EXPOSE"):].split("\n")[0].split(), target
    grafana = services["grafana"]
    assert volume(grafana, "./grafana/provisioning") == "/etc/grafana/provisioning"
    provider = load("grafana/provisioning/dashboards/weir.yml")["providers"]
    assert len(provider) == 1 and provider[0]["type"] == "file"
    assert os.path.dirname(volume(grafana, "./grafana/dashboard.json")) == provider[0]["options"]["path"]
    source = load("grafana/provisioning/datasources/prometheus.yml")["datasources"]
    assert len(source) == 1 and source[0]["type"] == "prometheus" and source[0]["access"] == "proxy" and source[0]["isDefault"] is True
    assert source[0]["url"] == "http://prometheus:9090"
    # what Grafana's manual has as keys of the two files
    assert set(provider[0]) <= {"name", "orgId", "folder", "folderUid", "type", "disableDeletion", "updateIntervalSeconds", "allowUiUpdates", "options"}
    assert set(source[0]) <= {"name", "type", "access", "orgId", "uid", "url", "user", "database", "basicAuth", "basicAuthUser", "withCredentials", "isDefault",
                              "jsonData", "secureJsonData", "version", "editable"}
    named = {v.split(":")[0] for s in services.values() for v in s["volumes"] if v[0].isalpha()}
    assert named == set(load("compose.yml")["volumes"]), named
    print("compose.yml: services, ports, files and volumes agree")


register_default_plugins()
check_dashboard()
check_compose()
sys.exit(0)
