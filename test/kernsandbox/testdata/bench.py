"""Makes one call for each line that it reads, and prints how many seconds that took."""
import sys
import time

import kern_sandbox

options = {"image": sys.argv[1], "mounts": {"/usr": ("/usr", "ro")}}
with kern_sandbox.Sandbox(**options) as plain, kern_sandbox.Sandbox(prewarm=2, **options) as ready:
    boxes = {"plain": plain, "ready": ready}
    for line in sys.stdin:
        box = boxes[line.strip()]
        began = time.perf_counter()
        got = box.run_code("print(1)")
        took = time.perf_counter() - began
        if got.stdout != "1\n" or not got.success:
            sys.exit("it said %r, %r" % (got.stdout, got.stderr))
        print(took, flush=True)
