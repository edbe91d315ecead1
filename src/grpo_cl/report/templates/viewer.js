"use strict";
// Everything that is shown comes from the data block and is inserted as text, never as markup.
(async () => {
  const GLYPH = { success: "✓", failure: "✕", partial: "◐", error: "!" };
  const WORDS = { success: "success", failure: "failure", partial: "partly", error: "infrastructure error" };
  const LONG_TEXT = 700, LONG_RESULT = 280, MAX_WORDS = 1500, MAX_CELLS = 1e6;
  const FILTERS = ["domain", "stage", "outcome", "change", "part", "min", "max", "text"];
  const byId = (id) => document.getElementById(id);

  // Control and format characters can reorder or hide text.
  const visible = (text) => String(text).replace(/[\p{Cc}\p{Cf}\p{Co}\p{Cs}]/gu, (c) => (c === "\n" || c === "\t" ? c : "\ufffd"));

  function el(name, attributes = {}, ...children) {
    const node = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === undefined || value === null || value === false) continue;
      if (key === "onclick") node.addEventListener("click", value);
      else if (key === "class") node.className = value;
      else node.setAttribute(key, value === true ? "" : visible(value));
    }
    for (const child of children.flat(Infinity)) {
      if (child === null || child === undefined || child === false) continue;
      node.append(child instanceof Node ? child : visible(child));
    }
    return node;
  }

  async function decode(text) {
    const packed = Uint8Array.from(atob(text.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  const data = await decode(byId("data").textContent);
  const number = (value) => (Number.isInteger(value) ? String(value) : value.toFixed(2).replace("-", "−"));
  const count = (amount, noun) => `${amount} ${noun}${amount === 1 ? "" : "s"}`;
  const stageLabel = new Map(data.stages.map((stage) => [stage.row, stage.label]));
  const shortStage = (stage) => (stage.row === 0 ? "start" : stage.label.replace(/^after /, ""));
  data.tasks.forEach((task, index) => { task.index = index; task.rows = new Map(); });
  for (const episode of data.episodes) {
    const rows = data.tasks[episode.task].rows;
    if (!rows.has(episode.row)) rows.set(episode.row, []);
    rows.get(episode.row).push(episode);
  }
  const parts = new Map(data.episodes.flatMap((one) => one.parts.map((part) => [part.name, part.label])));

  // ---- state, which is the fragment of the address

  function readHash() {
    const text = location.hash.slice(1), cut = text.indexOf("?");
    const path = (cut < 0 ? text : text.slice(0, cut)).split("/");
    const given = new URLSearchParams(cut < 0 ? "" : text.slice(cut + 1));
    const filters = Object.fromEntries(FILTERS.map((name) => [name, given.get(name) || ""]));
    const names = path.map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
    const task = data.tasks.find((one) => one.domain === names[0] && one.id === names[1]) || null;
    const missing = names[1] !== undefined && !task ? names.slice(0, 2).join("/") : null;
    const shown = [];
    for (const place of task && names[2] ? names[2].split(",").slice(0, 2) : []) {
      const [row, trial] = place.split(".").map(Number);
      const found = find(task, row, trial || 0);
      if (found) shown.push(found);
    }
    if (task && !shown.length) {
      const wanted = task.change === "same" ? null : task.compare;
      for (const [row, trial] of wanted || []) shown.push(find(task, row, trial));
      if (!shown.length) shown.push(task.rows.get(Math.max(...task.rows.keys()))[0]);
    }
    return { filters, task, shown, missing };
  }

  function find(task, row, trial) {
    const trials = task.rows.get(row) || [];
    return trials.find((one) => one.trial === trial) || trials[0];
  }

  function hashOf(task, shown, filters) {
    const place = shown.map((one) => (one.trial ? `${one.row}.${one.trial}` : one.row)).join(",");
    const path = task ? [task.domain, task.id].map(encodeURIComponent).join("/") + (place && `/${place}`) : "";
    const query = new URLSearchParams(FILTERS.filter((name) => filters[name]).map((name) => [name, filters[name]]));
    return `#${path}${query.size ? `?${query}` : ""}`;
  }

  let state = readHash(), rendered = location.hash;

  // At once, not with the event of the browser: the next key may come before it.
  function go(task, shown) {
    location.hash = hashOf(task, shown, state.filters);
    follow();
  }

  function follow() {
    if (location.hash === rendered) return;
    rendered = location.hash;
    state = readHash();
    showFilters();
    render();
  }

  function replaceFilters() {
    history.replaceState(null, "", hashOf(state.task, state.task ? state.shown : [], state.filters));
    rendered = location.hash;
    renderTable();
  }

  // ---- filters

  function fillSelect(id, options) {
    byId(id).replaceChildren(...options.map(([value, label]) => el("option", { value }, label)));
  }

  function makeFilters() {
    fillSelect("f-domain", [["", "all"], ...data.domains.map((one) => [one.name, one.name])]);
    fillSelect("f-stage", [["", "all"], ...data.stages.map((one) => [one.row, one.label])]);
    fillSelect("f-outcome", [["", "all"], ...Object.entries(WORDS)]);
    fillSelect("f-change", [["", "all"], ["lost", "lost"], ["gained", "gained"], ["same", "unchanged"]]);
    const wanted = [...parts].flatMap(([name, label]) => [[`-${name}`, `${label}: missed`], [`+${name}`, `${label}: met`]]);
    fillSelect("f-part", [["", "all"], ...wanted]);
    for (const name of FILTERS) {
      byId(`f-${name}`).addEventListener("input", () => {
        state.filters[name] = byId(`f-${name}`).value;
        replaceFilters();
      });
    }
    byId("clear").addEventListener("click", () => {
      state.filters = Object.fromEntries(FILTERS.map((name) => [name, ""]));
      showFilters();
      replaceFilters();
    });
    byId("filters").open = innerWidth > 760 || FILTERS.some((name) => state.filters[name]);
  }

  function showFilters() {
    for (const name of FILTERS) byId(`f-${name}`).value = state.filters[name];
  }

  function haystack(episode) {
    if (episode.haystack === undefined) {
      const task = data.tasks[episode.task];
      const said = episode.messages.flatMap((one) => [one.text, ...(one.calls || []).map((call) => call.name + " " + JSON.stringify(call.arguments))]);
      episode.haystack = [task.id, task.purpose, task.ticket, task.instructions, episode.ended, ...said].join("\n").toLowerCase();
    }
    return episode.haystack;
  }

  function matches(episode) {
    const { stage, outcome, part, min, max, text } = state.filters;
    if (stage !== "" && episode.row !== Number(stage)) return false;
    if (outcome && episode.outcome !== outcome) return false;
    if (min !== "" && episode.reward < Number(min)) return false;
    if (max !== "" && episode.reward > Number(max)) return false;
    if (part) {
      const found = episode.parts.find((one) => one.name === part.slice(1));
      if (!found || found.value === null || (found.value >= 0.999999) !== (part[0] === "+")) return false;
    }
    return !text || haystack(episode).includes(text.toLowerCase());
  }

  const isListed = (task) =>
    (!state.filters.domain || task.domain === state.filters.domain) &&
    (!state.filters.change || task.change === state.filters.change) &&
    [...task.rows.values()].flat().some(matches);

  // ---- the table of tasks and stages

  function cellOutcome(trials) {
    const kinds = new Set(trials.map((one) => one.outcome));
    return kinds.size === 1 ? [...kinds][0] : "partial";
  }

  // The ids of a domain often share a long beginning: it gives way to the rest where room is short.
  function sharedStart(tasks) {
    let start = tasks[0].id;
    for (const { id } of tasks) while (!id.startsWith(start)) start = start.slice(0, -1);
    return tasks.length > 1 ? start.replace(/[^-_ .:/|\]]*$/, "") : "";
  }
  for (const { name } of data.domains) {
    const tasks = data.tasks.filter((task) => task.domain === name);
    const start = tasks.length ? sharedStart(tasks) : "";
    for (const task of tasks) task.start = start;
  }

  function stageCell(task, stage) {
    const trials = task.rows.get(stage.row);
    if (!trials) return el("td", {}, el("span", { class: "absent", title: "no episode was kept" }, "·"));
    const kind = cellOutcome(trials), won = trials.filter((one) => one.outcome === "success").length;
    const mean = trials.reduce((sum, one) => sum + one.reward, 0) / trials.length;
    const current = state.task === task && state.shown.some((one) => one.row === stage.row);
    const score = trials.length > 1 ? `${won} of ${trials.length} trials succeed` : `${WORDS[kind]}, reward ${number(mean)}`;
    const label = `${task.domain} ${task.id}, ${stage.label}: ${score}`;
    const shown = trials.find(matches) || trials[0];
    return el("td", {}, el("button", {
      type: "button", class: `cell ${kind}${trials.some(matches) ? "" : " other"}`, tabindex: -1, title: label, "aria-label": label,
      "aria-current": current && "true", "data-task": task.index, "data-row": stage.row, onclick: () => go(task, [shown]),
    }, GLYPH[kind], trials.length > 1 && el("small", {}, `${won}/${trials.length}`)));
  }

  function taskRow(task) {
    const badge = task.change !== "same" && el("span", { class: `badge ${task.change}` }, task.change);
    const name = el("button", { type: "button", class: "name", title: `${task.id}${task.purpose ? `: ${task.purpose}` : ""}`, tabindex: -1, onclick: () => go(task, []) },
      el("span", { class: "start" }, task.start), el("span", { class: "rest" }, task.id.slice(task.start.length)), badge);
    return el("tr", { class: state.task === task && "selected" },
      el("th", { scope: "row" }, name), data.stages.map((stage) => stageCell(task, stage)));
  }

  function domainTable(domain, tasks) {
    const lost = tasks.filter((task) => task.change === "lost").length;
    const note = ` ${count(tasks.length, "task")}${lost ? `, ${lost} lost` : ""}`;
    const heads = data.stages.map((stage) => el("th", { scope: "col", title: stage.label, class: domain.learned === stage.row && "learned" }, shortStage(stage)));
    const table = el("table", {}, el("caption", {}, domain.name, el("small", {}, note)),
      el("colgroup", {}, el("col"), data.stages.map(() => el("col", { class: "stage" }))),
      el("thead", {}, el("tr", {}, el("th", { scope: "col", "aria-label": "task" }), heads)),
      el("tbody", {}, tasks.map(taskRow)));
    table.style.minWidth = `${7 + 3.2 * data.stages.length}rem`;
    return table;
  }

  function renderTable() {
    const listed = data.tasks.filter(isListed);
    const tables = data.domains.map((domain) => [domain, listed.filter((task) => task.domain === domain.name)]);
    const focus = document.activeElement?.dataset;
    const kept = focus?.task && [focus.task, focus.row];
    byId("tables").replaceChildren(...tables.filter(([, tasks]) => tasks.length).map((entry) => domainTable(...entry)));
    byId("count").textContent = listed.length === data.tasks.length ? `${listed.length} tasks` : `${listed.length} of ${data.tasks.length} tasks`;
    const number = FILTERS.filter((name) => state.filters[name]).length;
    byId("active").textContent = number ? ` · ${number} active` : "";
    const start = byId("tables").querySelector(".cell[aria-current]") || byId("tables").querySelector(".cell");
    if (start) start.tabIndex = 0;
    const again = kept && byId("tables").querySelector(`.cell[data-task="${kept[0]}"][data-row="${kept[1]}"]`);
    if (again) again.focus();
  }

  function moveFocus(event) {
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    const cell = event.target.closest?.(".cell");
    if (!step || !cell) return;
    event.preventDefault();
    const rows = [...byId("tables").querySelectorAll("tbody tr")];
    const place = rows.indexOf(cell.closest("tr")) + step[0];
    const column = data.stages.findIndex((stage) => String(stage.row) === cell.dataset.row) + step[1];
    const target = rows[place]?.children[column + 1]?.querySelector(".cell");
    if (!target) return;
    cell.tabIndex = -1;
    target.tabIndex = 0;
    target.focus();
  }

  // ---- messages

  function pretty(text) {
    try { return JSON.stringify(JSON.parse(text), null, 2); } catch { return text; }
  }

  function body(message, other) {
    const isTool = message.role === "tool", shape = isTool ? pretty : (text) => text;
    const isLong = message.text.length > (isTool ? LONG_RESULT : LONG_TEXT);
    const content = (form) => (other?.text ? words(form(message.text), form(other.text)) : form(message.text));
    const block = (form) => el(isTool ? "pre" : "div", { class: "text" }, content(form));
    if (!isLong) return block((text) => text);
    const start = message.text.slice(0, 160).replace(/\s+/g, " ");
    return el("details", {}, el("summary", {}, `${message.text.length.toLocaleString("en")} characters: ${start}`), block(shape));
  }

  function callLine(call, other) {
    const isOther = other && other.name !== call.name;
    const value = (name) => {
      const own = JSON.stringify(call.arguments[name]), theirs = other && JSON.stringify(other.arguments[name]);
      if (!other || isOther || own === theirs) return own;
      return theirs === undefined ? el("mark", {}, own) : words(own, theirs);
    };
    const given = Object.keys(call.arguments).map((name, index) => [index ? ", " : "", el("span", { class: "key" }, `${name}=`), value(name)]);
    return el("div", { class: "call" }, el("code", {}, el("b", {}, isOther ? el("mark", {}, call.name) : call.name), "(", el("wbr"), given, ")"),
      call.gold && el("span", { class: "star", title: "this call is one of the gold actions" }, "✓ gold"));
  }

  const callName = (episode, id) => episode.messages.flatMap((one) => one.calls || []).find((call) => call.id === id)?.name;
  const ROLES = { assistant: "Agent", user: "User", system: "System" };

  function bubble(message, episode, other) {
    const end = /\s*#{3}(STOP|TRANSFER|OUT-OF-SCOPE)#{3}\s*$/.exec(message.text || "");
    const stop = end && el("div", { class: "stop" }, `■ ${ROLES[message.role] || message.role} ends the episode (${end[1].toLowerCase()})`);
    if (end && end.index === 0) return stop;
    const said = end ? { ...message, text: message.text.slice(0, end.index) } : message;
    const isTool = message.role === "tool";
    const title = isTool ? [`↳ ${callName(episode, message.id) || "result"}`, message.by === "user" && " (the user's)", message.error && el("span", { class: "flag" }, " ✕ error")]
      : ROLES[message.role] || message.role;
    const text = said.text && body(said, other);
    return el("div", { class: `msg ${message.role}${message.error ? " failed" : ""}` }, el("div", { class: "role" }, title), text,
      (message.calls || []).map((call, index) => callLine(call, other && (other.calls || [])[index])), stop);
  }

  // ---- differences

  // The longest common subsequence of two lists, as pairs of indices.
  function common(left, right) {
    const n = left.length, m = right.length;
    let head = 0;
    while (head < n && head < m && left[head] === right[head]) head += 1;
    const pairs = Array.from({ length: head }, (_, i) => [i, i]);
    if ((n - head) * (m - head) > MAX_CELLS) return pairs;
    const size = m - head + 1, table = new Uint32Array((n - head + 1) * size);
    for (let i = n - 1; i >= head; i--) for (let j = m - 1; j >= head; j--) {
      const at = (i - head) * size + j - head;
      table[at] = left[i] === right[j] ? table[at + size + 1] + 1 : Math.max(table[at + size], table[at + 1]);
    }
    for (let i = head, j = head; i < n && j < m;) {
      const at = (i - head) * size + j - head;
      if (left[i] === right[j]) pairs.push([i++, j++]);
      else if (table[at + size] >= table[at + 1]) i++;
      else j++;
    }
    return pairs;
  }

  function words(text, other) {
    const cut = (one) => one.match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu) || [];
    const own = cut(text), theirs = cut(other);
    if (own.length > MAX_WORDS || theirs.length > MAX_WORDS) return [text];
    const kept = new Set(common(own, theirs).map(([index]) => index));
    const runs = [];
    own.forEach((word, index) => {
      const isSame = kept.has(index) || !word.trim();
      if (runs.length && runs[runs.length - 1][0] === isSame) runs[runs.length - 1][1] += word;
      else runs.push([isSame, word]);
    });
    return runs.map(([isSame, run]) => (isSame || !run.trim() ? run : el("mark", {}, run)));
  }

  const signature = (message) => JSON.stringify([message.role, message.text, (message.calls || []).map((call) => [call.name, call.arguments]), message.error, message.by]);

  const signatures = (episode) => episode.messages.map(signature).join();

  // Rows of two columns: equal messages stand beside each other, others beside one of the same role.
  function align(left, right) {
    const same = common(left.map(signature), right.map(signature));
    const rows = [];
    let i = 0, j = 0;
    for (const [nextI, nextJ] of [...same, [left.length, right.length]]) {
      while (i < nextI || j < nextJ) {
        const a = i < nextI ? left[i] : null, b = j < nextJ ? right[j] : null;
        const together = a && b && a.role === b.role;
        if (together) { rows.push([a, b, false]); i++; j++; }
        else if (a && (!b || a.role === "tool" || b.role !== "tool")) { rows.push([a, null, false]); i++; }
        else { rows.push([null, b, false]); j++; }
      }
      if (nextI < left.length) { rows.push([left[nextI], right[nextJ], true]); i = nextI + 1; j = nextJ + 1; }
    }
    return rows;
  }

  // ---- the episode

  function rewardPanel(episode, isPair) {
    const chip = (part) => {
      const kind = part.value === null ? "part" : part.value >= 0.999999 ? "met" : part.value > 0 ? "part" : "missed";
      const glyph = { met: "✓", missed: "✕", part: part.value === null ? "?" : "◐" }[kind];
      const value = part.value === null || Number.isInteger(part.value) ? "" : ` ${number(part.value)}`;
      return el("li", { class: `${kind}${part.counts ? "" : " aside"}` }, el("i", { "aria-label": kind === "met" ? "met" : "missed" }, glyph),
        el("span", {}, `${part.label}${value}`, !part.counts && " (not part of this reward)", el("small", {}, part.why)));
    };
    return el("section", { class: "panel" },
      el("div", { class: "verdict" }, el("b", {}, number(episode.reward)), el("span", { class: `pill ${episode.outcome}` }, `${GLYPH[episode.outcome]} ${WORDS[episode.outcome]}`),
        el("small", {}, `ended by ${episode.ended.replaceAll("_", " ")}, ${count(episode.messages.length, "message")}`)),
      episode.reason && el("p", { class: "prose" }, episode.reason),
      el("ul", { class: "chips" }, episode.parts.filter((part) => part.counts || (!isPair && part.value < 0.999999)).map(chip)));
  }

  function goldList(task, episodes) {
    const glyph = { called: "✓", "other arguments": "≈", "not called": "✕" }, css = { called: "called", "other arguments": "near", "not called": "not" };
    if (!task.gold.length) return el("p", { class: "place" }, "The solution is to change nothing.");
    return el("ol", { class: "gold" }, task.gold.map((call, index) => {
      const states = episodes.map((one) => one.gold[index]);
      const marks = states.map((one) => el("i", { class: css[one], title: one, "aria-label": one }, glyph[one]));
      const note = [call.by === "user" && "the user's", ...new Set(states.filter((one) => one === "other arguments"))].filter(Boolean).join(", ");
      return el("li", {}, el("span", { class: "marks" }, marks), el("span", {}, callLine(call), note && el("small", {}, note)));
    }));
  }

  function taskPanel(task, episodes) {
    const isSolo = episodes.every((one) => one.solo), isPair = episodes.length > 1;
    const called = episodes.map((one) => one.gold.filter((state) => state === "called").length).join(", then ");
    const title = `Gold actions${task.gold.length ? `: ${called} of ${task.gold.length} called` : ""}`;
    return el("section", { class: "panel" },
      el("h3", {}, isSolo ? "Ticket" : "What the user is told"),
      el("div", { class: "prose" }, isSolo ? task.ticket : task.instructions),
      el("details", { class: "fold", open: !isPair }, el("summary", {}, title), goldList(task, episodes),
        task.say.length > 0 && el("p", { class: "prose" }, `The agent must say: ${task.say.join(" · ")}`)));
  }

  function stageButtons(task, shown) {
    return data.stages.filter((stage) => task.rows.has(stage.row)).map((stage) => {
      const trials = task.rows.get(stage.row), kind = cellOutcome(trials);
      return el("button", { type: "button", class: "step", "aria-pressed": String(shown.length === 1 && shown[0].row === stage.row), onclick: () => go(task, [trials[0]]) },
        el("i", { class: kind }, GLYPH[kind]), stage.label);
    });
  }

  function episodeSelect(task, shown, index) {
    const options = data.stages.flatMap((stage) => (task.rows.get(stage.row) || []).map((one) =>
      el("option", { value: `${one.row}.${one.trial}`, selected: one === shown[index] }, `${GLYPH[one.outcome]} ${stage.label}${task.rows.get(stage.row).length > 1 ? `, trial ${one.trial + 1}` : ""}`)));
    const select = el("select", { "aria-label": shown.length > 1 ? (index ? "right episode" : "left episode") : "episode" }, options);
    select.addEventListener("change", () => {
      const [row, trial] = select.value.split(".").map(Number);
      go(task, shown.map((one, place) => (place === index ? find(task, row, trial) : one)));
    });
    return select;
  }

  function comparedWith(task, one) {
    const [before, after] = task.compare.map(([row, trial]) => find(task, row, trial));
    return one && one.row > before.row && one.row !== after.row ? [before, one] : [before, after];
  }

  function toolbar(task, shown) {
    const isPair = shown.length > 1, trials = task.rows.get(shown[0].row);
    return el("div", { class: "tools" },
      isPair ? [episodeSelect(task, shown, 0), el("span", {}, "→"), episodeSelect(task, shown, 1)] : [stageButtons(task, shown), trials.length > 1 && episodeSelect(task, shown, 0)],
      el("span", { class: "gap" }),
      isPair && signatures(shown[0]) !== signatures(shown[1]) && el("button", { type: "button", id: "jump", onclick: showDifference }, "First difference ↓"),
      task.compare && el("button", { type: "button", id: "compare", "aria-pressed": String(isPair), onclick: toggleCompare }, isPair ? "One episode" : "Compare before and after"));
  }

  const showDifference = () => byId("first-difference")?.scrollIntoView({ block: "start" });

  function toggleCompare() {
    const { task, shown } = state;
    if (!task || !task.compare) return;
    go(task, shown.length > 1 ? [shown[1]] : comparedWith(task, shown[0]));
  }

  function pairRow([a, b, isSame], shown, isFirst) {
    const side = (message, other, index) => el("div", { class: index ? "second" : "" }, el("div", { class: "side" }, stageLabel.get(shown[index].row)),
      message ? bubble(message, shown[index], isSame ? null : other) : el("div", { class: "none" }, "no such message here"));
    const names = ["pair", isSame ? "same" : "diff", isFirst && "first"].filter(Boolean).join(" ");
    return el("div", { class: names, id: isFirst && "first-difference" }, isFirst && el("div", { class: "flag" }, "First difference"), side(a, b, 0), side(b, a, 1));
  }

  function pairs(shown) {
    const rows = align(shown[0].messages, shown[1].messages);
    const first = rows.findIndex(([, , isSame]) => !isSame);
    const head = rows.slice(0, first < 0 ? rows.length : first);
    const label = first < 0 ? "The two episodes are the same, message by message" : `The first ${head.length === 1 ? "message is" : `${head.length} messages are`} the same`;
    return el("div", { class: "pairs" },
      head.length > 0 && el("details", { class: "run", open: first < 0 }, el("summary", {}, label), head.map((row) => pairRow(row, shown))),
      first >= 0 && rows.slice(first).map((row, index) => pairRow(row, shown, index === 0)));
  }

  function columnPanel(one) {
    return el("div", {}, el("h2", {}, stageLabel.get(one.row)), rewardPanel(one, true));
  }

  // ---- what is shown while no task is chosen

  const rate = (tasks, row) => {
    const rewards = tasks.flatMap((task) => task.rows.get(row) || []).map((one) => one.reward);
    return rewards.length ? rewards.reduce((sum, one) => sum + one, 0) / rewards.length : null;
  };

  function matrix() {
    const rows = data.domains.map((domain) => {
      const tasks = data.tasks.filter((task) => task.domain === domain.name);
      return el("tr", {}, el("th", { scope: "row" }, domain.name), data.stages.map((stage) => {
        const mean = rate(tasks, stage.row);
        const bar = el("i", { class: "bar" });
        if (mean !== null) bar.style.width = `${100 * Math.max(0, Math.min(1, mean))}%`;
        return el("td", { class: domain.learned === stage.row && "learned" }, mean === null ? "–" : [mean.toFixed(2).replace("-", "−"), el("span", { class: "track" }, bar)]);
      }));
    });
    return el("div", { class: "scroll" }, el("table", { class: "matrix" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "mean reward"), data.stages.map((stage) => el("th", { scope: "col" }, stage.label)))), el("tbody", {}, rows)));
  }

  function changes(kind, title) {
    const found = data.tasks.filter((task) => task.change === kind);
    if (!found.length) return null;
    const entry = (task) => {
      const [before, after] = task.compare.map(([row]) => rate([task], row));
      return el("li", {}, el("a", { href: hashOf(task, [], state.filters) }, el("span", { class: "where" }, task.domain), el("span", { class: "id" }, task.id),
        el("span", { class: `move ${kind}` }, `${number(before)} → ${number(after)}`)));
    };
    return el("section", { class: "panel" }, el("details", { class: "fold", open: kind === "lost" }, el("summary", {}, `${title} (${found.length})`), el("ul", { class: "changes" }, found.map(entry))));
  }

  function overview() {
    const intro = "A row of the table is a task, a column the stage after which the policy was evaluated; each cell opens an episode. A task is lost or gained since its domain was trained on; in the domain trained on last, since before training.";
    return [el("section", { class: "panel" }, el("h3", {}, "Learning and forgetting"), matrix(), el("p", { class: "place" }, `Of the episodes kept here; framed: the stage that trained on the domain. ${intro}`)),
      changes("lost", "Lost: before and after, side by side"), changes("gained", "Gained: before and after, side by side")];
  }

  function renderDetail() {
    const { task, shown, missing } = state;
    document.body.classList.toggle("open", Boolean(task || missing));
    if (!task) {
      const gone = missing && [el("button", { type: "button", class: "back", onclick: () => go(null, []) }, "← All tasks"), el("p", { class: "empty" }, `There is no episode of ${missing} in this run.`)];
      byId("detail").replaceChildren(...[gone || overview()].flat().filter(Boolean));
      return;
    }
    const trial = shown.length === 1 && task.rows.get(shown[0].row).length > 1 ? `, trial ${shown[0].trial + 1}` : "";
    const places = shown.map((one) => stageLabel.get(one.row)).join(" → ");
    byId("detail").replaceChildren(
      el("button", { type: "button", class: "back", onclick: () => go(null, []) }, "← All tasks"),
      el("h2", {}, task.id), el("p", { class: "place" }, `${task.domain} · ${places}${trial}`, task.refusal && " · the right outcome is to change nothing"),
      toolbar(task, shown),
      ...(shown.length > 1
        ? [el("div", { class: "pair" }, shown.map(columnPanel)), taskPanel(task, shown), pairs(shown)]
        : [rewardPanel(shown[0]), taskPanel(task, shown), el("div", { class: "chat" }, shown[0].messages.map((message) => bubble(message, shown[0])))]));
  }

  function stepTask(by) {
    const listed = data.tasks.filter(isListed);
    if (!listed.length) return;
    const at = listed.indexOf(state.task);
    const next = listed[Math.min(Math.max(at + by, 0), listed.length - 1)];
    const row = state.shown[0]?.row;
    go(next, state.shown.length === 1 && next.rows.has(row) ? [next.rows.get(row)[0]] : []);
  }

  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const isTyping = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape") {
      if (isTyping) event.target.blur();
      else go(null, []);
      return;
    }
    if (isTyping) return;
    if (event.key === "/") { event.preventDefault(); byId("filters").open = true; byId("f-text").focus(); }
    else if (event.key === "j") stepTask(1);
    else if (event.key === "k") stepTask(-1);
    else if (event.key === "c") toggleCompare();
    else if (event.key === "d") showDifference();
    else moveFocus(event);
  }

  function render() {
    renderTable();
    renderDetail();
    byId("tables").querySelector(".cell[aria-current]")?.scrollIntoView({ block: "nearest" });
    if (state.task && innerWidth <= 760) scrollTo(0, 0);
  }

  byId("run").textContent = visible(data.run);
  byId("about").textContent = visible([data.model, data.algorithm, data.domains.map((one) => one.name).join(" → ")].filter(Boolean).join(" · "));
  const changed = (kind) => data.tasks.filter((task) => task.change === kind).length;
  byId("verdict").append(el("b", {}, `${changed("lost")} lost`), `, ${changed("gained")} gained of ${data.tasks.length} tasks; ${data.episodes.length} episodes`);
  byId("legend").append(...Object.entries(GLYPH).map(([kind, glyph]) => el("span", {}, el("i", { class: kind }, glyph), WORDS[kind])),
    el("span", {}, "bold: the stage that trained on the domain"));
  makeFilters();
  showFilters();
  addEventListener("hashchange", follow);
  addEventListener("keydown", onKey);
  render();
  document.documentElement.dataset.ready = "true";
})();
