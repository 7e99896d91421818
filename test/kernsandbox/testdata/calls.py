"""Makes the calls of a JSON file with kern_sandbox and prints what came of them."""
import json
import os
import sys

import kern_sandbox

image, calls, folder, shown = sys.argv[1], json.load(open(sys.argv[2])), sys.argv[3], sys.argv[4]
out = {}
for number, call in enumerate(calls):
    workspace = os.path.join(folder, str(number))
    os.mkdir(workspace)
    for name, text in (call.get("files") or {}).items():
        with open(os.path.join(workspace, name), "w") as f:
            f.write(text)
    options = {"timeout_s": 30, "pyc_cache": False}
    for key, name in (("timeout", "timeout_s"), ("maxOutput", "max_output_bytes"), ("cpus", "cpus"), ("env", "env"), ("allow", "egress_allow"), ("setup", "setup"), ("memory", "memory_mb")):
        if call.get(key):
            options[name] = call[key]
    mounts = {"/usr": ("/usr", "ro")}
    if call.get("mounts"):
        mounts[os.path.join(shown, "m")] = ("/m", "ro")
        mounts[os.path.join(shown, "w")] = ("/w", "rw")
    with kern_sandbox.Sandbox(image=image, workspace=workspace, mounts=mounts, **options) as box:
        if call.get("command"):
            got = box.run(call["command"])
        elif call.get("cells"):
            with box.kernel() as kernel:
                for cell in call["cells"]:
                    try:
                        got = kernel.run_code(cell)
                    except kern_sandbox.SandboxError as e:
                        if "kernel is dead" not in str(e):
                            raise
        else:
            got = box.run_code(call["code"], language=call["language"])
    made = os.path.join(shown, "w", "made")
    out[call["name"]] = {
        "exit": got.exit_code,
        "fault": got.fault.type if got.fault else None,
        "stdout": got.stdout,
        "stderr": got.code_stderr,
        "files": sorted(os.path.basename(f.path) for f in got.files),
        "truncated": got.truncated,
        "success": got.success,
        "results": [mime + " " + r.data[mime] for r in got.results for mime in sorted(r.data)],
        "mount": open(made).read() if call.get("mounts") and os.path.exists(made) else "",
        "uncapped": bool(call.get("memory")) and not got.fault and got.success,
    }
json.dump(out, sys.stdout)
