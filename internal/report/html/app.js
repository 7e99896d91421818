'use strict';
// Shows what the page carries as JSON. Nodes are made and their text is set;
// nothing here parses markup, and the page's policy would not let it. Texts are
// inert already: what cannot be seen in them is written out.
(() => {
  const data = JSON.parse(document.getElementById('data').textContent);
  const batch = 300; // rows that are made at a time

  // make builds one element. Children are nodes or texts, and a text stays one.
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    node.append(...children);
    return node;
  }

  const stepName = (i) => data.steps[i] === undefined ? 'step ' + i : data.steps[i];
  const stepLink = (i) => make('a', { href: '#step-' + i }, stepName(i));
  const badge = (word) => make('span', { class: 'badge ' + word }, word);
  const number = (n) => make('td', { class: 'number' }, n.toLocaleString('en'));
  const cell = (...children) => make('td', {}, ...children);

  // table is a filtered table: a text, a kind, a count, and rows by the batch.
  function table(section, o) {
    if (o.list.length === 0) return;
    const filter = make('input', { type: 'search', name: 'search', 'aria-label': 'Filter ' + o.name, placeholder: 'Filter ' + o.name, autocomplete: 'off', spellcheck: 'false' });
    const kind = make('select', { name: 'kind', 'aria-label': 'Kind of ' + o.name });
    for (const [value, label] of o.kinds) kind.append(make('option', { value }, label));
    const status = make('span', { role: 'status' });
    const body = make('tbody', {});
    const more = make('button', { type: 'button', class: 'more' }, 'Show more');
    let found = [];
    let shown = 0;

    function grow() {
      const next = found.slice(shown, shown + batch);
      body.append(...next.map(o.row));
      shown += next.length;
      more.hidden = shown >= found.length;
      status.textContent = found.length + ' of ' + o.list.length + ' ' + o.name + (more.hidden ? '' : ', first ' + shown + ' shown');
    }
    function apply() {
      const text = filter.value.trim().toLowerCase();
      found = o.list.filter((x) => (kind.value === 'all' || o.is(x, kind.value)) && (text === '' || o.text(x).toLowerCase().includes(text)));
      body.replaceChildren();
      shown = 0;
      grow();
    }
    filter.addEventListener('input', apply);
    kind.addEventListener('change', apply);
    more.addEventListener('click', grow);

    const head = make('tr', {}, ...o.columns.map((c) => make('th', { scope: 'col' }, c)));
    section.append(
      make('div', { class: 'tools', role: 'search', 'aria-label': o.name }, filter, kind, status),
      make('div', { class: 'wide', role: 'region', 'aria-label': 'Table of ' + o.name, tabindex: '0' }, make('table', {}, make('thead', {}, head), body)),
      more);
    apply();
  }

  // pieces cuts a line at each place where text is found, whatever its case.
  function pieces(line, text) {
    const lower = line.toLowerCase();
    if (!lower.includes(text)) return null;
    if (lower.length !== line.length) return [make('mark', {}, line)]; // places differ
    const out = [];
    let from = 0;
    for (let at = lower.indexOf(text); at >= 0; at = lower.indexOf(text, from)) {
      out.push(line.slice(from, at), make('mark', {}, line.slice(at, at + text.length)));
      from = at + text.length;
    }
    out.push(line.slice(from));
    return out;
  }

  // classes says what each line of a patch is. Only a line outside of a hunk, or
  // one that content cannot be, begins a file.
  function classes(lines) {
    let inside = false;
    return lines.map((line) => {
      if (line.startsWith('diff --git ')) { inside = false; return 'line file'; }
      if (line.startsWith('@@')) { inside = true; return 'line place'; }
      if (inside && line.startsWith('+')) return 'line added';
      if (inside && line.startsWith('-')) return 'line gone';
      return inside ? 'line' : 'line about';
    });
  }

  // viewer shows the logs and the diff of one step, one at a time, with a search.
  function viewer(place, streams, name) {
    const search = make('input', { type: 'search', name: 'search', 'aria-label': 'Search the output of ' + name, placeholder: 'Search', autocomplete: 'off', spellcheck: 'false' });
    const status = make('span', { role: 'status' });
    const note = make('p', { class: 'left' });
    const only = make('input', { type: 'checkbox', name: 'only' });
    const pre = make('pre', { tabindex: '0', role: 'region' });
    let current = streams[0];
    let marks = [];
    let now = -1;

    const tabs = streams.map((s) => {
      const tab = make('button', { type: 'button' }, s.name);
      tab.addEventListener('click', () => { current = s; show(); toEnd(); });
      return tab;
    });
    function show() {
      tabs.forEach((tab, i) => tab.setAttribute('aria-pressed', String(streams[i] === current)));
      pre.setAttribute('aria-label', current.name + ' of ' + name);
      note.textContent = current.note;
      note.hidden = current.note === '';
      const lines = current.text === '' ? [] : current.text.split('\n');
      const kinds = current.name === 'diff' ? classes(lines) : null;
      const text = search.value.toLowerCase();
      let hits = 0;
      const nodes = [];
      lines.forEach((line, i) => {
        const found = text === '' ? null : pieces(line, text);
        if (found) hits++;
        if (text !== '' && only.checked && !found) return;
        nodes.push(make('span', { class: kinds ? kinds[i] : 'line' }, ...(found || [line])));
      });
      pre.replaceChildren(...nodes);
      marks = Array.from(pre.querySelectorAll('mark'));
      now = -1;
      const all = lines.length === 1 ? '1 line' : lines.length + ' lines';
      status.textContent = text === '' ? all : hits + ' of ' + all;
    }
    function step(by) {
      if (marks.length === 0) return;
      if (now >= 0) marks[now].classList.remove('now');
      now = (now + by + marks.length + (now < 0 && by < 0 ? 1 : 0)) % marks.length;
      marks[now].classList.add('now');
      marks[now].scrollIntoView({ block: 'nearest' });
      status.textContent = 'found place ' + (now + 1) + ' of ' + marks.length;
    }
    const toEnd = () => { pre.scrollTop = current.name === 'diff' ? 0 : pre.scrollHeight; };
    search.addEventListener('input', show);
    only.addEventListener('change', show);
    search.addEventListener('keydown', (e) => {
      if (e.key === 'Enter') { e.preventDefault(); step(e.shiftKey ? -1 : 1); }
    });
    place.append(
      make('div', { class: 'tools', role: 'search', 'aria-label': 'output of ' + name },
        make('span', { role: 'group', 'aria-label': 'What to show' }, ...tabs), search, make('label', {}, only, ' only lines that match'), status),
      note, pre);
    show();
    toEnd();
    return (word) => {
      const wanted = streams.find((s) => s.name === word);
      if (wanted) { current = wanted; show(); toEnd(); }
    };
  }

  const choosers = new Map(); // by which the address names the diff of a step

  // fill makes the viewer of a step when it is unfolded first.
  function fill(details) {
    const place = details.querySelector('.streams');
    if (!place || place.hasChildNodes()) return;
    const i = Number(details.id.slice('step-'.length));
    const streams = data.streams[i];
    if (streams) choosers.set(details, viewer(place, streams, stepName(i)));
    else place.append(make('p', { class: 'left' }, 'No output is on this page.'));
  }

  // unfold opens the step that the address names, at its diff if it says so.
  function unfold() {
    const named = /^#(step-\d+)(-diff)?$/.exec(location.hash);
    const details = named ? document.getElementById(named[1]) : null;
    if (!details) return;
    details.open = true;
    fill(details);
    if (named[2] && choosers.has(details)) choosers.get(details)('diff');
    details.querySelector('summary').focus();
  }

  // nearest is the filter of the part that has the focus, or else the first that
  // can be seen, or else the first.
  function nearest() {
    const all = Array.from(document.querySelectorAll('input[type=search]')).filter((x) => x.getClientRects().length > 0);
    const part = document.activeElement && document.activeElement.closest('details, section');
    const seen = (x) => { const r = x.getBoundingClientRect(); return r.bottom > 0 && r.top < innerHeight; };
    return all.find((x) => part && part.contains(x)) || all.find(seen) || all[0];
  }

  function keys(e) {
    if (e.ctrlKey || e.altKey || e.metaKey) return;
    const at = document.activeElement;
    if (at && at.matches('input[type=search]') && e.key === 'Escape') {
      at.value = '';
      at.dispatchEvent(new Event('input'));
    } else if (e.key === '/' && !(at && at.matches('input, select'))) {
      const filter = nearest();
      if (filter) { e.preventDefault(); filter.focus(); }
    } else if ((e.key === 'ArrowDown' || e.key === 'ArrowUp') && at && at.matches('a.to, summary')) {
      const among = at.matches('summary') ? document : at.closest('section');
      const all = Array.from(among.querySelectorAll(at.matches('summary') ? 'details.step > summary' : 'a.to'));
      const next = all[all.indexOf(at) + (e.key === 'ArrowDown' ? 1 : -1)];
      if (next) { e.preventDefault(); next.focus(); }
    }
  }

  table(document.getElementById('requests'), {
    name: 'requests', list: data.requests,
    columns: ['Step', 'Result', 'Host', 'Protocol', 'Times', 'Bytes in', 'Bytes out', 'Rule or reason'],
    kinds: [['all', 'All results'], ['denied', 'Denied'], ['failed', 'Failed'], ['allowed', 'Allowed']],
    is: (x, kind) => x.verdict === kind,
    text: (x) => x.host + ':' + x.port,
    row: (x) => make('tr', {}, cell(stepLink(x.step)), cell(badge(x.verdict)), make('td', { class: 'text' }, x.host + ':' + x.port), cell(x.protocol),
      number(x.count), number(x.in), number(x.out), make('td', { class: 'text' }, x.why)),
  });
  table(document.getElementById('files'), {
    name: 'files', list: data.files,
    columns: ['Step', 'Change', 'Look', 'Path', 'Became', 'Type', 'Bytes', 'Mode'],
    kinds: [['all', 'All changes'], ['marked', 'Protected or to look at first'], ['created', 'Created'], ['modified', 'Modified'],
      ['deleted', 'Deleted'], ['mode', 'Mode'], ['retyped', 'Type changed']],
    is: (x, kind) => kind === 'marked' ? x.mark !== undefined : x.change === kind,
    text: (x) => x.path,
    row: (x) => make('tr', {}, cell(stepLink(x.step)), cell(x.change === 'deleted' ? badge('deleted') : x.change),
      cell(...(x.mark ? [make('span', { class: 'badge' }, x.mark)] : [])), make('td', { class: 'text' }, x.path + (x.more || '')), cell(x.became), cell(x.type), number(x.size), cell(x.mode)),
  });
  for (const details of document.querySelectorAll('details.step')) {
    details.addEventListener('toggle', () => { if (details.open) fill(details); });
    if (details.open) fill(details);
  }
  document.addEventListener('keydown', keys);
  addEventListener('hashchange', unfold);
  unfold();
})();
