#!lua
-- One fenced write, all in one step: judge the token for every resource, raise the marks, execute the commands.
--
-- KEYS  the marks, one for each resource in the order of their names, then the keys of the commands.
-- ARGV  1 how many marks   2 the token, issuer/lineage/value   3 its holder
--       4 what a missing mark means: "reject", "create", or "raise" (create, whatever the eviction policy)
--       5 the write's id, or "" if there are no commands
--       6 how many writes the caller has seen the first mark count under this token: a lower bound
--       7 the protocol of the connection, "2" or "3"
--       8… the commands: how many words, the words. A count below zero: its reply has another shape in RESP3.
--
-- Answers
--   {writes, reply, ...}                             executed; `writes` is what the first mark counts now
--   {failed, writes, i, error, {writes, reply, ...}} the i-th command (from 0) failed, those after it were not executed
--   {applied, writes[, answer]}                      this id was executed before, with that answer if it was kept
--   {again, writes}                                  this id may have been executed and forgotten; nothing was done
--   {missing | evictable, i}                         the i-th resource (from 0) has no mark; nothing was done
--   {stale | issuer | lineage, i, token, holder, at} the mark that refuses; nothing was done
--
-- A mark is a hash: token, holder, at (when the token was first seen, in microseconds since 1970 by this server). The
-- first mark of a write also remembers the newest writes of its token: `writes` counts them, `id:ID` holds a write's
-- packed answer, and so that the oldest ones can be forgotten, `recent` holds the ids since the last full chunk and
-- `chunk:K` those of the K-th. All of it is one key, so that an eviction takes all or nothing. No time to live.

local CHUNK = 32
local KEPT_CHUNKS = 32
local KEPT_WRITES = CHUNK * KEPT_CHUNKS
local KEPT_BYTES = 1024
local FIRST_COMMAND = 8

local marks, token, holder = ARGV[1] + 0, ARGV[2], ARGV[3]
local on_missing, id, seen, resp3 = ARGV[4], ARGV[5], ARGV[6] + 0, ARGV[7] == '3'

-- Whether the digits `a` are a larger number than the digits `b`. Lua's own numbers are doubles: they round above 2^53.
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

-- Whether this server may throw away a key that has no time to live: then a missing mark proves nothing.
local function evicts_marks()
  local memory = redis.call('INFO', 'memory')
  local allkeys = string.find(memory, 'maxmemory_policy:allkeys', 1, true)
  return allkeys and not string.find(memory, '\nmaxmemory:0\r', 1, true)
end

local advances, repeats = {}, {}
local writes, recent = 0, ''
for i = 1, marks do
  local mark = redis.call('HMGET', KEYS[i], 'token', 'writes', 'recent', 'id:' .. id)
  if not mark[1] then
    if on_missing == 'reject' then return {'missing', i - 1} end
    if on_missing == 'create' and evicts_marks() then return {'evictable', i - 1} end
    advances[#advances + 1] = KEYS[i]
  elseif mark[1] ~= token then
    local verdict = refusal(mark[1])
    if verdict then return {verdict, i - 1, unpack(redis.call('HMGET', KEYS[i], 'token', 'holder', 'at'))} end
    advances[#advances + 1] = KEYS[i]
  elseif i > 1 or id == '' then
    repeats[#repeats + 1] = KEYS[i]
  else
    writes, recent = (mark[2] or 0) + 0, mark[3] or ''
    if mark[4] then
      -- Written to again, for the same reason as below.
      redis.call('HSET', KEYS[1], 'writes', writes)
      if mark[4] == '' then return {'applied', writes} end
      return {'applied', writes, cmsgpack.unpack(mark[4])}
    end
    if writes > seen + KEPT_WRITES or writes < seen then return {'again', writes} end
  end
end

if #advances > 0 then
  local now = redis.call('TIME')
  local at = now[1] .. string.format('%06d', now[2])
  for _, key in ipairs(advances) do
    redis.call('UNLINK', key)
    redis.call('HSET', key, 'token', token, 'holder', holder, 'at', at)
  end
end
-- A write even where nothing changes, so that a WAIT that follows on this connection covers the mark.
for _, key in ipairs(repeats) do redis.call('HSET', key, 'holder', holder) end
if id == '' then return {0} end

local answer, n, last = {writes + 1}, 1, #ARGV
local i = FIRST_COMMAND
while i <= last do
  local words = ARGV[i] + 0
  local reshaped = words < 0
  if reshaped then
    words = -words
    if resp3 then redis.setresp(3) end
  end
  local reply = redis.pcall(unpack(ARGV, i + 1, i + words))
  if reshaped and resp3 then redis.setresp(2) end
  if type(reply) == 'table' and reply.err then
    answer = {'failed', writes + 1, n - 1, reply.err, answer}
    break
  end
  n = n + 1
  if reply == nil then reply = false end -- a null in RESP3, which would end the list
  answer[n] = reply
  i = i + words + 1
end

local kept = cmsgpack.pack(answer)
if #kept > KEPT_BYTES then kept = '' end
recent = recent .. id
writes = writes + 1
if writes % CHUNK == 0 then
  local chunk = writes / CHUNK
  redis.call('HSET', KEYS[1], 'chunk:' .. chunk, recent)
  recent = ''
  local oldest = 'chunk:' .. chunk - KEPT_CHUNKS - 1
  local ids = redis.call('HGET', KEYS[1], oldest)
  if ids then
    local forgotten = {oldest}
    for at = 1, #ids, #id do forgotten[#forgotten + 1] = 'id:' .. string.sub(ids, at, at + #id - 1) end
    redis.call('HDEL', KEYS[1], unpack(forgotten))
  end
end
redis.call('HSET', KEYS[1], 'holder', holder, 'writes', writes, 'recent', recent, 'id:' .. id, kept)
return answer
