#!lua
-- One fenced write, all in one step: judge the token for every resource, raise the marks, execute the commands.
--
-- KEYS  the marks, one for each resource in the order of their names, then the keys of the commands.
-- ARGV  1 the token, issuer/lineage/value   2 the writer's field in the first mark, writer:ID; "writer:" if there are no
--         commands   3 the stamp of its write, SEQUENCE:NONCE   4 how many marks   5 the token's holder
--       6 three words: what a missing mark means, "reject", "create", "raise" (create, whatever the eviction policy), or
--         "adopt" (as raise, and a mark of another issuer gives way, unless the token's own issuer had the resource
--         before under a newer one; who did it and why is the stamp);
--         the protocol of the connection, "2" or "3";
--         the generation of the first mark that the caller knows of; if the write was sent before: GENERATION/SENT, a
--         moment by this server's clock at which it was not sent yet, in microseconds since 1970
--       7… the commands: how many words, the words. A count below zero: its reply has another shape in RESP3.
--
-- Answers
--   reply                                            executed: of one command, if its reply is no list
--   {1, reply, ...}                                  executed
--   {failed, i, error, {1, reply, ...}}              the i-th command (from 0) failed, those after it were not executed
--   {failed, i, error, false}                        the same, executed before: the replies were too large to be kept
--   {unrecorded, error}                              executed, but that could not be written down
--   {applied[, answer]}                              executed before, with that answer if it was kept
--   {again, generation}                              it may have been executed and forgotten; nothing was done
--   {missing | evictable, i}                         the i-th resource (from 0) has no mark; nothing was done
--   {foreign, i}                                     under its key is a hash that is no mark; nothing was done
--   {stale | issuer | lineage, i, token, holder, at, now}
--                                                    the mark that refuses; of the data nothing was changed
--
-- A mark is a hash: token, holder, at (when the token was first seen, in microseconds since 1970 by this server). The
-- first mark of a write also remembers, under `writer:ID`, the last write of each writer of its token: its stamp and
-- its answer, packed ("+": one command, which answered OK). `refused` are the last refusals, a line each: kind, token,
-- when, holder; `refusals` is how many there were. Above a limit it forgets them all and says in `generation` when. It
-- is all one key, so that an eviction takes all or nothing. There is no time to live.

local WRITERS = 1024
local KEPT_BYTES = 1024
local KEPT_REFUSALS = 8
local FIRST_COMMAND = 7
local SEQUENCE_DIGITS = 16 -- leading zeros: so they have the order of their numbers as text too

local token, writer, stamp = ARGV[1], ARGV[2], ARGV[3]

-- The usual write: the next one of a writer whose last one is known, under the token that the one mark has. It does
-- without everything below, each part of which costs something as it is made.
local is_usual = false
local reply -- of the one command, if it was executed here
if ARGV[4] == '1' then
  local last = redis.call('HMGET', KEYS[1], 'token', writer)
  is_usual = last[1] == token and last[2] and last[2] < string.sub(stamp, 1, SEQUENCE_DIGITS)
  -- One command, of a reply that is the same in RESP3.
  if is_usual and #ARGV == FIRST_COMMAND + ARGV[FIRST_COMMAND] and ARGV[FIRST_COMMAND + 1] ~= 'EVAL' then
    reply = redis.pcall(unpack(ARGV, FIRST_COMMAND + 1))
    if type(reply) == 'table' and reply.ok == 'OK' then
      local stored = redis.pcall('HSET', KEYS[1], 'holder', ARGV[5], writer, stamp .. ' +')
      if type(stored) == 'table' then return {'unrecorded', stored.err} end
      return reply
    end
  end
end

if not is_usual then
  -- Judge the token and raise the marks; returns what refuses or answers the write, nil if its commands are to be
  -- executed.
  local function judge()
    local marks, holder = ARGV[4] + 0, ARGV[5]
    local on_missing, protocol, known, sent = string.match(ARGV[6], '^(%a+) (%d) (%d+)/?(%d*)$')
    sent = sent ~= '' and sent

    -- Whether the digits `a` are a larger number than the digits `b`. Lua's own numbers are doubles, which round above
    -- 2^53.
    local function larger(a, b)
      if #a ~= #b then return #a > #b end
      for i = 1, #a do
        local x, y = string.byte(a, i), string.byte(b, i)
        if x ~= y then return x > y end
      end
      return false
    end

    -- Why the token is refused where the mark is another one; nil if it is newer.
    local function refusal(mark)
      local issuer, lineage, value = string.match(token, '^([^/]+)/([^/]+)/(%d+)$')
      local its_issuer, its_lineage, its_value = string.match(mark, '^([^/]+)/([^/]+)/(%d+)$')
      if its_issuer ~= issuer then return 'issuer' end
      if its_value == value then return 'lineage' end
      if not larger(value, its_value) then return 'stale' end
    end

    -- For one who takes a resource from another issuer: the token of an issuer that had it before, which refuses this
    -- one.
    local function seen_before(key)
      for at, its in string.gmatch(redis.call('HGET', key, 'adopted') or '', '(%d+) (%S+) [^\n]*') do
        local verdict = its ~= token and refusal(its)
        if verdict and verdict ~= 'issuer' then return verdict, its, at end
      end
    end

    -- Microseconds since 1970, as text.
    local function time()
      local now = redis.call('TIME')
      return now[1] .. string.format('%06d', now[2])
    end

    -- Refuse, and write down whom: fields that no verdict looks at.
    local function refuse(verdict, i)
      local now = time()
      local mark = redis.call('HMGET', KEYS[i], 'token', 'holder', 'at')
      local answer = {verdict, i - 1, mark[1], mark[2], mark[3], now}
      if not string.match(mark[1], '^[^/]+/[^/]+/%d+$') then return answer end -- something else: the caller says so
      local whose = string.gsub(string.sub(holder, 1, 255), '%c', ' ')
      local line = verdict .. ' ' .. token .. ' ' .. now .. ' ' .. whose .. '\n'
      local before = redis.call('HGET', KEYS[i], 'refused') or ''
      local kept = string.match(line .. before, '^' .. string.rep('[^\n]*\n?', KEPT_REFUSALS))
      redis.call('HSET', KEYS[i], 'refused', kept)
      redis.call('HINCRBY', KEYS[i], 'refusals', 1)
      return answer
    end

    -- Whether this server may throw away a key that has no time to live: then a missing mark proves nothing.
    local function evicts_marks()
      local memory = redis.call('INFO', 'memory')
      local allkeys = string.find(memory, 'maxmemory_policy:allkeys', 1, true)
      return allkeys and not string.find(memory, '\nmaxmemory:0\r', 1, true)
    end

    -- What to answer to a write that is not the next one of a writer whose last one is known; nil if it is.
    local function repeated(last)
      local space = string.find(last, ' ', 1, true)
      local its_stamp = string.sub(last, 1, space - 1)
      if its_stamp == stamp then
        local kept = string.sub(last, space + 1)
        if kept == '' then return {'applied'} end
        if kept == '+' then return {'applied', {1, {ok = 'OK'}}} end
        return {'applied', cmsgpack.unpack(kept)}
      end
      if string.match(its_stamp, '^%d+') + 0 >= string.match(stamp, '^%d+') + 0 then
        return {'again', redis.call('HGET', KEYS[1], 'generation') or '0'}
      end
    end

    -- Whether the mark was set after this write was first sent, by the same clock. Then it is no evidence: the one before
    -- it may have been lost, and with it that the write was executed.
    local function is_younger(key)
      return sent and redis.call('HGET', key, 'at') + 0 >= sent + 0
    end

    local advances, repeats, adopted = {}, {}, {}
    local is_new = true
    for i = 1, marks do
      local mark = redis.call('HMGET', KEYS[i], 'token', writer)
      if not mark[1] then
        if redis.call('EXISTS', KEYS[i]) == 1 then return {'foreign', i - 1} end
        if on_missing == 'reject' then return {'missing', i - 1} end
        if on_missing == 'create' and evicts_marks() then return {'evictable', i - 1} end
        advances[#advances + 1] = KEYS[i]
      elseif mark[1] ~= token then
        local verdict = refusal(mark[1])
        if verdict == 'issuer' and on_missing == 'adopt' and string.match(mark[1], '^[^/]+/[^/]+/%d+$') then
          local before, its, at = seen_before(KEYS[i])
          if before then return {before, i - 1, its, '', at, time()} end
          adopted[KEYS[i]] = time() .. ' ' .. mark[1] .. ' ' .. stamp
          verdict = nil
        end
        if verdict then return refuse(verdict, i) end
        if is_younger(KEYS[i]) then return {'again', '0'} end
        advances[#advances + 1] = KEYS[i]
      elseif i > 1 or writer == 'writer:' then
        repeats[#repeats + 1] = KEYS[i]
      elseif mark[2] then
        is_new = false
        local answer = repeated(mark[2])
        if answer then
          -- Written to again, so that a WAIT that follows on this connection covers it.
          redis.call('HSET', KEYS[1], 'token', token)
          return answer
        end
      else
        local generation = redis.call('HGET', KEYS[1], 'generation') or '0'
        if generation ~= known or is_younger(KEYS[1]) then return {'again', generation} end
      end
    end

    if #advances > 0 then
      local at = time()
      for _, key in ipairs(advances) do
        local told = redis.call('HMGET', key, 'refused', 'refusals', 'adopted')
        redis.call('UNLINK', key)
        redis.call('HSET', key, 'token', token, 'holder', holder, 'at', at)
        if told[1] then redis.call('HSET', key, 'refused', told[1], 'refusals', told[2]) end
        local acts = adopted[key] and adopted[key] .. '\n' .. (told[3] or '') or told[3]
        if acts then redis.call('HSET', key, 'adopted', acts) end
      end
    end
    -- A write even where nothing changes, as above.
    for _, key in ipairs(repeats) do redis.call('HSET', key, 'holder', holder) end
    if writer == 'writer:' then return {1} end
    if is_new and redis.call('HLEN', KEYS[1]) > WRITERS then
      local forgotten = {}
      for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
        if string.sub(field, 1, 7) == 'writer:' then forgotten[#forgotten + 1] = field end
      end
      redis.call('HDEL', KEYS[1], unpack(forgotten))
      -- The time, not a count: a replica that is promoted without having heard of a generation would count to it again.
      redis.call('HSET', KEYS[1], 'generation', time())
    end
  end

  local answer = judge()
  if answer then return answer end
end

-- A script of the caller's: EVAL, its text, how many keys, the keys, the other arguments. It sees them as KEYS and ARGV,
-- and what it raises is the reply, as redis.pcall gives it.
local function run_script(first, after)
  local chunk, broken = loadstring('local KEYS, ARGV = ...; ' .. ARGV[first + 1], '@user_script')
  if not chunk then return {err = 'ERR Error compiling script: ' .. broken} end
  local count = ARGV[first + 2] + 0
  local keys = {unpack(ARGV, first + 3, first + 2 + count)}
  local ran, reply = pcall(chunk, keys, {unpack(ARGV, first + 3 + count, after)})
  redis.setresp(2)
  if ran then return reply end
  return {err = type(reply) == 'table' and reply.err or tostring(reply)}
end

local answer, n, after = {1}, 1, #ARGV
local i = FIRST_COMMAND
local is_executed = reply ~= nil
while i <= after do
  local words = ARGV[i] + 0
  local reshaped = words < 0
  if reshaped then
    words = -words
    if string.find(ARGV[6], ' 3 ', 1, true) then redis.setresp(3) end
  end
  if is_executed then is_executed = false -- the one command: its reply is there
  elseif ARGV[i + 1] == 'EVAL' then reply = run_script(i + 1, i + words)
  else reply = redis.pcall(unpack(ARGV, i + 1, i + words)) end
  if reshaped then redis.setresp(2) end
  if type(reply) == 'table' and reply.err then
    answer = {'failed', n - 1, reply.err, answer}
    break
  end
  n = n + 1
  if reply == nil then reply = false end -- a null in RESP3, which would end the list
  answer[n] = reply
  i = i + words + 1
end

local single = n == 2 and answer[1] == 1 and (type(reply) ~= 'table' or reply.ok)
local kept = single and type(reply) == 'table' and reply.ok == 'OK' and '+' or cmsgpack.pack(answer)
if #kept > KEPT_BYTES then
  -- Too large; but that a command failed must not be forgotten.
  kept = answer[1] == 'failed' and cmsgpack.pack({'failed', answer[2], string.sub(answer[3], 1, KEPT_BYTES), false}) or ''
end
local stored = redis.pcall('HSET', KEYS[1], 'holder', ARGV[5], writer, stamp .. ' ' .. kept)
if type(stored) == 'table' then return {'unrecorded', stored.err} end
if single then return reply end
return answer
