#!lua
-- One fenced write: judge the token for every resource, raise the marks, execute the commands. All in one step, or refused as a whole.
--
-- KEYS  the marks, one for each resource in the order of their names, then the keys of the commands.
-- ARGV  1 how many marks   2 issuer   3 lineage   4 value (decimal digits)   5 holder
--       6 what a missing mark means: "reject", "create", or "raise" (create whatever the eviction policy)
--       7 the write's id, or "" if nothing is to be remembered
--       8 how many writes the caller has seen the first mark count under this token (a lower bound)
--       9 the protocol of the connection, "2" or "3"
--      10… the commands: how many words, the words. A count below zero: its reply has another shape in RESP3.
--
-- Answers
--   {writes, reply, ...}                     executed; `writes` is what the first mark counts now
--   {failed, writes, i, error, reply, ...}   the i-th command (from 0) failed; the ones before it were executed, those after it not
--   {applied, writes[, answer]}              this id was executed before; with that answer, if it was kept
--   {again, writes}                          this id may have been executed and forgotten; nothing was done
--   {missing | evictable, i}                 the i-th resource (from 0) has no mark; nothing was done
--   {stale | issuer | lineage, i, issuer, lineage, value, holder, at}    the mark that refuses; nothing was done
--
-- A mark is a hash: issuer, lineage, value, holder, at (microseconds since 1970 by this server, when the token was first seen). The
-- first mark of a write also remembers the newest writes of its token: `writes` counts them, `id:ID` holds a write's packed answer,
-- and so that the oldest can be forgotten, `recent` holds the ids since the last full chunk, `chunk:K` those of the K-th one. It is
-- all one key, so that an eviction takes all of it or nothing. There is no time to live.

local CHUNK = 32
local KEPT_CHUNKS = 32
local KEPT_WRITES = CHUNK * KEPT_CHUNKS
local KEPT_BYTES = 1024
local FIRST_COMMAND = 10

local marks, issuer, lineage, value, holder = ARGV[1] + 0, ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local on_missing, id, resp3 = ARGV[6], ARGV[7], ARGV[9] == '3'

-- Whether the digits `a` are a larger number than the digits `b`. Lua's own numbers are doubles, which round above 2^53.
local function newer(a, b)
  if #a ~= #b then return #a > #b end
  for i = 1, #a do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x > y end
  end
  return false
end

-- Whether this server may throw away a key that has no time to live: then a missing mark proves nothing.
local function evicts_marks()
  local memory = redis.call('INFO', 'memory')
  return string.find(memory, 'maxmemory_policy:allkeys', 1, true) and not string.find(memory, '\nmaxmemory:0\r', 1, true)
end

local function refuse(verdict, i)
  local mark = redis.call('HMGET', KEYS[i], 'issuer', 'lineage', 'value', 'holder', 'at')
  return {verdict, i - 1, mark[1], mark[2], mark[3], mark[4], mark[5]}
end

local advances = {}
local writes, recent = 0, ''
for i = 1, marks do
  local mark = redis.call('HMGET', KEYS[i], 'issuer', 'lineage', 'value', 'writes', 'recent', 'id:' .. id)
  if not mark[3] then
    if on_missing == 'reject' then return {'missing', i - 1} end
    if on_missing == 'create' and evicts_marks() then return {'evictable', i - 1} end
    advances[#advances + 1] = KEYS[i]
  elseif mark[1] ~= issuer then
    return refuse('issuer', i)
  elseif mark[3] ~= value then
    if not newer(value, mark[3]) then return refuse('stale', i) end
    advances[#advances + 1] = KEYS[i]
  elseif mark[2] ~= lineage then
    return refuse('lineage', i)
  elseif i == 1 and mark[4] and id ~= '' then
    local seen = ARGV[8] + 0
    writes, recent = mark[4] + 0, mark[5]
    if mark[6] then
      -- Written to again, so that a WAIT that follows on this connection covers it.
      redis.call('HSET', KEYS[1], 'writes', writes)
      if mark[6] == '' then return {'applied', writes} end
      return {'applied', writes, cmsgpack.unpack(mark[6])}
    end
    if writes > seen + KEPT_WRITES or writes < seen then return {'again', writes} end
  end
end

if #advances > 0 then
  local now = redis.call('TIME')
  local at = now[1] .. string.format('%06d', now[2])
  for _, key in ipairs(advances) do
    redis.call('UNLINK', key)
    redis.call('HSET', key, 'issuer', issuer, 'lineage', lineage, 'value', value, 'holder', holder, 'at', at)
  end
elseif id == '' then
  redis.call('HSET', KEYS[1], 'holder', holder) -- so that there is a write for WAIT to cover
end
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
    answer = {'failed', writes + 1, n - 1, reply.err, unpack(answer, 2, n)}
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
