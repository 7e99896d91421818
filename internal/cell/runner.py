# Runs cells of Python and hands out their rich results. It is put into the box
# as a read-only file; what it says is no more trusted than the cells, which
# run in the same process.
#
# Descriptor 3 brings cells, descriptor 4 takes what comes of them; both have the
# frames of frame.go. Standard output, standard error and the exit status are the
# cell's own: nothing here writes to them but the traceback of a cell that failed.
# Python 3.8 and later, and nothing but what every interpreter has built in: each
# import that is not needed would be paid for by every cell.
import sys
import os


def main():
    import _ast
    import _thread
    import builtins

    requests, answers = 3, 4
    # What a cell starts with exec has no business with either of them.
    os.set_inheritable(requests, False)
    os.set_inheritable(answers, False)
    owner = os.getpid()
    lock = _thread.RLock()
    most = 16 << 20  # of one value; more would be thrown away outside
    sources = {}  # name of a cell as tracebacks have it -> its text

    def number(n, size):
        return n.to_bytes(size, 'big')

    def send(kind, payload):
        # A child that was forked has its own copy of the lock, so what it sends
        # would get between the halves of what we send.
        if os.getpid() != owner:
            return
        data = memoryview(kind + number(len(payload), 4) + payload)
        with lock:
            try:
                while data:
                    data = data[os.write(answers, data):]
            except OSError:
                pass  # nobody listens, or the cell closed it; that is no failure of the cell

    def receive(n):
        data = b''
        while len(data) < n:
            piece = os.read(requests, min(n - len(data), 1 << 20))
            if not piece:
                return None
            data += piece
        return data

    def encode(mime, value):
        # bytes of a value as it travels; None for what cannot travel.
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value)
        if mime.startswith('image/') and mime != 'image/svg+xml' and isinstance(value, str):
            import binascii
            return binascii.a2b_base64(value)
        if mime == 'application/json' or mime.endswith('+json') and not isinstance(value, str):
            import json
            value = json.dumps(value)
        if not isinstance(value, str):
            value = str(value)
        return value.encode('utf-8', 'replace')

    methods = (
        ('text/html', '_repr_html_'), ('text/markdown', '_repr_markdown_'), ('text/latex', '_repr_latex_'),
        ('application/json', '_repr_json_'), ('image/svg+xml', '_repr_svg_'), ('image/png', '_repr_png_'),
        ('image/jpeg', '_repr_jpeg_'),
    )

    def call(value, name, *args, **more):
        # Of the class, as a notebook asks: a class that is displayed is not its
        # instance, and an object that has every attribute means none of them.
        if isinstance(value, type) or not callable(getattr(type(value), name, None)):
            return None
        try:
            got = getattr(value, name)(*args, **more)
        except NotImplementedError:
            return None
        except Exception:
            report(*sys.exc_info())  # a notebook shows it too, and goes on
            return None
        return got[0] if isinstance(got, tuple) and len(got) == 2 else got

    def bundle(value):
        forms = call(value, '_repr_mimebundle_', include=None, exclude=None)
        forms = dict(forms) if isinstance(forms, dict) else {}
        for mime, name in methods:
            if mime not in forms:
                got = call(value, name)
                if got is not None:
                    forms[mime] = got
        if 'text/plain' not in forms:
            forms['text/plain'] = repr(value)
        return forms

    def publish(forms):
        payload = b''
        for mime, value in forms.items():
            if value is None or not isinstance(mime, str):
                continue
            try:
                data = encode(mime, value)
            except Exception:
                report(*sys.exc_info())
                continue
            if len(data) > most:
                mime, data = 'text/plain', ('%d bytes of %s are more than a result may have' % (len(data), mime)).encode()
            name = mime.encode('utf-8', 'replace')[:200]
            payload += number(len(name), 2) + name + number(len(data), 4) + data
        if payload:
            send(b'r', payload)

    def display(*values, raw=False, **_):
        """Show values as results of the cell, each in every form that it has."""
        for value in values:
            if raw and isinstance(value, dict):
                publish(value)
            else:
                publish(bundle(value))

    def figures():
        plt = sys.modules.get('matplotlib.pyplot')
        if plt is None:
            return
        import io
        for n in plt.get_fignums():
            figure = plt.figure(n)
            if not getattr(figure, 'axes', True):
                continue  # a notebook shows no empty figure
            out = io.BytesIO()
            figure.savefig(out, format='png', bbox_inches='tight')
            publish({'image/png': out.getvalue(), 'text/plain': repr(figure)})
        plt.close('all')

    def report(kind, value, trace):
        # The cell's own lines, and no frame of ours.
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        if sys.excepthook is not sys.__excepthook__:
            try:
                return sys.excepthook(kind, value, trace)
            except BaseException:
                pass
        try:
            path = sys.path[:]
            sys.path[:] = [p for p in path if p not in ('', os.getcwd())]
            try:
                import linecache
                import traceback
            finally:
                sys.path[:] = path
            for name, text in sources.items():
                linecache.cache[name] = (len(text), None, text.splitlines(True), name)
            traceback.print_exception(kind, value, trace)
        except BaseException:
            sys.__excepthook__(kind, value, trace)

    def status(code):
        # What a process would end with whose cell called sys.exit(code).
        if code is None:
            return 0
        if isinstance(code, int):
            return code & 0xff
        try:
            print(code, file=sys.stderr)
        except Exception:
            pass
        return 1

    def run(name, text, space):
        # Runs a cell and gives its exit status.
        where = '<cell %s>' % name
        sources[where] = text
        if 'linecache' in sys.modules:
            sys.modules['linecache'].cache[where] = (len(text), None, text.splitlines(True), where)
        code = 0
        try:
            tree = compile(text, where, 'exec', 0x400, dont_inherit=True)  # PyCF_ONLY_AST
            last = None
            if tree.body and isinstance(tree.body[-1], _ast.Expr) and not text.rstrip().endswith(';'):
                last = tree.body.pop().value
            exec(compile(tree, where, 'exec', dont_inherit=True), space)
            if last is not None:
                value = eval(compile(_ast.Expression(last), where, 'eval', dont_inherit=True), space)
                if value is not None:
                    builtins._ = value
                    display(value)
        except SystemExit as e:
            code = status(e.code)
        except BaseException:
            report(*sys.exc_info())
            code = 1
        if os.getpid() != owner:
            return code  # a child that came back from the cell's own fork
        try:
            figures()
        except SystemExit as e:
            code = code or status(e.code)
        except BaseException:
            report(*sys.exc_info())
            code = code or 1
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        return code

    # Cells see a module of their own, so that what they define can be pickled
    # and a process that is spawned does not find this file as its main one.
    module = type(sys)('__main__')
    module.__builtins__ = builtins
    hold = sys.modules['__main__']
    sys.modules['__main__'] = module
    builtins.display = display
    sys.path[0] = ''  # the folder the cell is in, as in a notebook
    sys.argv = ['']
    os.environ.setdefault('MPLBACKEND', 'agg')

    send(b'h', b'')
    while True:
        head = receive(5)
        if head is None:
            return 0
        body = receive(int.from_bytes(head[1:], 'big'))
        if body is None:
            return 0
        n = int.from_bytes(body[:2], 'big')
        code = run(body[2:2 + n].decode('utf-8', 'replace'), body[2 + n:].decode('utf-8', 'replace'), module.__dict__)
        if os.getpid() != owner or head[:1] == b'l':
            del hold
            return code
        send(b'e', number(code, 1))


sys.exit(main())
