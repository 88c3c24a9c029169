"""Runs the steps of a composite action as GitHub's runner does, with caches and artifacts as folders.

Known are the expressions and actions that ci/action.yml uses; a test that uses others fails."""

import os
import re
import shutil
import subprocess

import yaml

TOKEN = re.compile(r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w.-]*)|(?P<sign>&&|\|\||==|!=|!|\(|\)|,))")
FUNCTIONS = {"format": lambda form, *values: re.sub(r"\{(\d+)\}", lambda match: values[int(match[1])], form)}
WORDS = {"&&": "and", "||": "or", "!": "not "}


def evaluate(expression, contexts, failed):
    """The value of a GitHub expression. Texts compare as texts, and a missing value is an empty text."""
    status = {"always": lambda: True, "success": lambda: not failed, "failure": lambda: failed, "cancelled": lambda: False}
    names, python, at = {}, "", 0
    while at < len(expression.rstrip()):
        match = TOKEN.match(expression, at)
        if not match:
            raise ValueError(f"not understood: {expression[at:]!r} of {expression!r}")
        at = match.end()
        if match["text"]:
            python += repr(match["text"][1:-1].replace("''", "'"))
        elif match["sign"]:
            python += f" {WORDS.get(match['sign'], match['sign'])} " if match["sign"] != "!" else " not "
        else:
            key = f"v{len(names)}"
            names[key] = (FUNCTIONS | status).get(match["name"]) or looked_up(match["name"], contexts)
            python += key
    return eval(python.strip(), {"__builtins__": {}}, names)  # tokens only


def looked_up(path, contexts):
    value = contexts
    for part in path.split("."):
        value = value.get(part, "") if isinstance(value, dict) else ""
    return value


def filled(text, contexts, failed=False):
    """`text` with its ${{ }} replaced."""
    return re.sub(r"\$\{\{(.*?)\}\}", lambda match: str(evaluate(match[1], contexts, failed)), str(text))


def is_due(step, contexts, failed):
    condition = str(step.get("if", "success()")).strip().removeprefix("${{").removesuffix("}}")
    if not re.search(r"\b(always|success|failure|cancelled)\(", condition):
        condition = f"success() && ({condition})"
    return bool(evaluate(condition, contexts, failed))


class Job:
    """One use of the action in a workspace. `caches` and `artifacts` are folders that outlive the job."""

    def __init__(self, action, workspace, caches, artifacts, github, inputs, variables):
        self.steps = yaml.safe_load(action.read_text(encoding="utf-8"))["runs"]["steps"]
        self.workspace, self.caches, self.artifacts, self.variables = workspace, caches, artifacts, variables
        self.contexts = {"github": github, "inputs": inputs, "steps": {}}
        self.failed, self.code, self.log, self.done = False, 0, "", []

    def run(self):
        for step in self.steps:
            if is_due(step, self.contexts, self.failed):
                outputs = self.use(step) if "uses" in step else self.shell(step)
                if "id" in step:
                    self.contexts["steps"][step["id"]] = {"outputs": outputs}
        return self

    def fill(self, text):
        return filled(text, self.contexts, self.failed)

    def shell(self, step):
        output = self.workspace / "step-output"
        output.write_text("")
        environment = self.variables | {key: self.fill(value) for key, value in step.get("env", {}).items()}
        done = subprocess.run(["bash", "-eo", "pipefail", "-c", self.fill(step["run"])], cwd=self.workspace, check=False,
                              env=environment | {"GITHUB_OUTPUT": str(output)}, capture_output=True, text=True)
        self.log += done.stdout + done.stderr
        self.done.append(re.search(r'/action" (\w+)', step["run"])[1])
        if done.returncode != 0:
            self.failed, self.code = True, self.code or done.returncode
        return dict(line.split("=", 1) for line in output.read_text().splitlines())

    def use(self, step):
        values = {key: self.fill(value) for key, value in step.get("with", {}).items()}
        name = step["uses"].partition("@")[0]
        self.done.append(name)
        return {"actions/cache/restore": self.restore, "actions/cache/save": self.save,
                "actions/upload-artifact": self.upload}[name](**values)

    def restore(self, path, key, **others):
        found = [self.caches / key] if (self.caches / key).exists() else []
        for prefix in others.get("restore-keys", "").split():
            found += sorted((one for one in self.caches.iterdir() if one.name.startswith(prefix)),
                            key=os.path.getmtime, reverse=True)
        if found:
            shutil.copytree(found[0], self.workspace / path, dirs_exist_ok=True, symlinks=True)
        return {"cache-hit": "true" if found and found[0].name == key else "" if not found else "false"}

    def save(self, path, key):
        """GitHub warns, and saves nothing, if the key exists or the path does not."""
        if (self.workspace / path).exists() and not (self.caches / key).exists():
            shutil.copytree(self.workspace / path, self.caches / key, symlinks=True)
        return {}

    def upload(self, name, path, **_):
        lines = path.split()
        left_out = {self.workspace / line[1:] for line in lines if line.startswith("!")}
        for line in lines:
            if not line.startswith("!") and (self.workspace / line).exists():
                shutil.copytree(self.workspace / line, self.artifacts / name, dirs_exist_ok=True,
                                ignore=lambda folder, names: [one for one in names if self.workspace / folder / one in left_out])
        return {}
