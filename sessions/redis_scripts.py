"""Lua scripts of the network store: the admission rules of `store.py`, as one atomic step of the
server.

The value of a record's key is a header of 17 bytes and the record. The header has the revision in 8 bytes, whether the
session has ended in 1, and the time of the write in milliseconds in 8. Three more keys are for the whole model: the
open sessions and the ended ones, each sorted by last use, and the sizes of all records, with their sum under "total".
A record that the server has removed by itself is still counted there, until it is swept.
"""

from __future__ import annotations

from struct import Struct

RECORD_HEADER = Struct(">Q?d")
WRITTEN, CONFLICT, TOO_MANY_SESSIONS, TOO_MANY_BYTES = range(4)
"""Codes of outcomes."""

_NOW = """
local function milliseconds(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
"""

_CODES = (
    "local WRITTEN, CONFLICT, TOO_MANY_SESSIONS, TOO_MANY_BYTES = "
    f"{WRITTEN}, {CONFLICT}, {TOO_MANY_SESSIONS}, {TOO_MANY_BYTES}\n"
)

WRITE = (
    _CODES
    + _NOW
    + """
local OPEN, ENDED, SIZES = KEYS[1], KEYS[2], KEYS[3]
local now, idle, retry = milliseconds(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local most_sessions, most_bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local sweep_rows, sweep_due, prefix = ARGV[6], ARGV[7] == '1', ARGV[8]
local FIRST_KEY, FIRST_ARGUMENT, ARGUMENTS = 4, 9, 5
local expired = 0

local function size_of(member) return tonumber(redis.call('HGET', SIZES, member) or '0') end

local function remove_lapsed(set, since)
  local members = redis.call('ZRANGEBYSCORE', set, '-inf', '(' .. since, 'LIMIT', 0, sweep_rows)
  for _, member in ipairs(members) do
    redis.call('DEL', prefix .. member)
    redis.call('HINCRBY', SIZES, 'total', 0 - size_of(member)) -- the minus of nothing would be no integer
    redis.call('HDEL', SIZES, member)
    redis.call('ZREM', set, member)
  end
  return #members
end

local function sweep()
  local sessions = remove_lapsed(OPEN, now - idle)
  expired = expired + sessions
  return sessions + remove_lapsed(ENDED, now - retry)
end

local function until_room()
  local oldest = redis.call('ZRANGE', OPEN, 0, 0, 'WITHSCORES')
  if #oldest == 0 then return idle end
  return idle - math.max(0, now - tonumber(oldest[2]))
end

local function change(key, member, expected, revision, ended, record)
  local head = redis.call('GETRANGE', key, 0, 16)
  local present = #head == 17
  local present_ended = string.sub(head, 9, 9) ~= '\\0'
  if present and struct.unpack('>d', head, 10) < now - (present_ended and retry or idle) then present = false end
  local present_revision = present and string.sub(head, 1, 8) or ''
  -- The same call once more: its answer was lost on the way.
  if present_revision == revision then return WRITTEN, 0 end
  local is_new = not present or present_ended
  if expected ~= present_revision and not (expected == '' and is_new) then return CONFLICT, 0 end
  local was_open, size
  repeat
    was_open = redis.call('ZSCORE', OPEN, member)
    size = size_of(member)
    local open_after = redis.call('ZCARD', OPEN) - (was_open and 1 or 0) + (ended and 0 or 1)
    local bytes_after = size_of('total') - size + #record
    local beyond = nil
    if is_new and not ended and open_after > most_sessions then
      beyond = TOO_MANY_SESSIONS
    elseif is_new and bytes_after > most_bytes then
      beyond = TOO_MANY_BYTES
    end
    if beyond and sweep() == 0 then return beyond, until_room() end
  until not beyond
  redis.call('SET', key, revision .. struct.pack('>Bd', ended and 1 or 0, now) .. record, 'PX',
    (ended and retry or idle) + 1000)
  if was_open and not present then expired = expired + 1 end
  redis.call('ZREM', ended and OPEN or ENDED, member)
  redis.call('ZADD', ended and ENDED or OPEN, now, member)
  redis.call('HSET', SIZES, member, #record)
  redis.call('HINCRBY', SIZES, 'total', #record - size)
  return WRITTEN, 0
end

local answer = {0}
for number = 0, #KEYS - FIRST_KEY do
  local at = FIRST_ARGUMENT + number * ARGUMENTS
  local code, wait = change(KEYS[FIRST_KEY + number], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1',
    ARGV[at + 4])
  table.insert(answer, code)
  table.insert(answer, wait)
end
if sweep_due then sweep() end
-- When every record is gone, so is what counts them. Never sooner than what another worker has asked for.
local last = math.max(idle, retry) + 2000
for _, key in ipairs({OPEN, ENDED, SIZES}) do
  if redis.call('PTTL', key) < last then redis.call('PEXPIRE', key, last) end
end
answer[1] = expired
return answer
"""
)
"""KEYS: open, ended, sizes, then each record's.

ARGV: now in milliseconds or nothing for the server's time, idle and retry in milliseconds, the limits of sessions and
bytes, rows of one sweep, whether a sweep is due, the prefix of record keys; then for each record its member, the
revision it must have or nothing, the new one, whether the session ends, and the record. Returns the number of idle
sessions that were removed, and a code and milliseconds for each record.
"""

TOTALS = (
    _NOW
    + """
local now, idle = milliseconds(ARGV[1]), tonumber(ARGV[2])
local oldest = redis.call('ZRANGEBYSCORE', KEYS[1], now - idle, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {
  redis.call('ZCOUNT', KEYS[1], now - idle, '+inf'),
  tonumber(redis.call('HGET', KEYS[2], 'total') or '0'),
  #oldest > 0 and math.max(0, now - tonumber(oldest[2])) or -1,
}
"""
)
"""KEYS: open, sizes.

ARGV: now and idle as above. Returns sessions, bytes, milliseconds of the oldest or -1.
"""
