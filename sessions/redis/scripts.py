"""Lua scripts of the network store: writes at the revision that was read, by the rules of `admission.py`, in one step.

The value of a record's key is a header of 17 bytes and the record. The header has the revision in 8 bytes, whether the
session has ended in 1, and the time of the write in milliseconds in 8: of an unconfirmed session, the time at which a
confirmed one that expires with it was written. More keys are for the whole model: the open sessions, the unconfirmed
ones and the ended ones, each sorted by last use; the sizes of all records, with their sum under "total" and the store's
time (`store_time.py`) under "clock"; and the client of each session, with each client's number of open sessions. A
record that the server has removed by itself is still counted there, until it is swept.
"""

from __future__ import annotations

from struct import Struct

from ..store_time import JITTER_SECONDS

RECORD_HEADER = Struct(">Q?d")
WRITTEN, CONFLICT, BEYOND_SESSIONS, BEYOND_UNCONFIRMED, BEYOND_CLIENT, BEYOND_BYTES = range(6)
"""Codes of outcomes."""
KEPT_BY_SERVER = 3
"""Lifetimes after which the server removes a record by its clock.

The store removes expired records after one lifetime. The server removes the rest if no client writes.
"""
LEAST_KEPT_SECONDS = 7 * 24 * 60 * 60
"""The least time after which the server removes a record: a shorter jump of its clock ends no session."""

_NOW = """
local function milliseconds(given)
  if given ~= '' then return tonumber(given) end
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end

local function stored_time(key, shared)
  local clock = redis.call('HGET', key, 'clock')
  if not clock then return shared, 0, 0 end
  local time, written, uncounted = string.match(clock, '(%S+) (%S+) (%S+)')
  return tonumber(time), tonumber(uncounted), math.max(0, shared - tonumber(written))
end

local function current_time(key, shared, estimate)
  local time, uncounted, by_shared = stored_time(key, shared)
  if estimate == '' then return time, uncounted + by_shared, shared end
  local by_local = math.max(0, tonumber(estimate) - (time + uncounted))
  local passed = math.min(by_local, by_shared)
  return time + passed, uncounted + (by_local - passed), shared - math.min(by_shared - passed, JITTER)
end
"""

_CODES = (
    "local WRITTEN, CONFLICT, BEYOND_SESSIONS, BEYOND_UNCONFIRMED, BEYOND_CLIENT, BEYOND_BYTES = "
    f"{WRITTEN}, {CONFLICT}, {BEYOND_SESSIONS}, {BEYOND_UNCONFIRMED}, {BEYOND_CLIENT}, {BEYOND_BYTES}\n"
    f"local KEPT_BY_SERVER, LEAST_KEPT = {KEPT_BY_SERVER}, {1000 * LEAST_KEPT_SECONDS}\n"
    f"local JITTER = {1000 * JITTER_SECONDS}\n"
)

WRITE = (
    _CODES
    + _NOW
    + """
local OPEN, UNCONFIRMED, ENDED, SIZES, CLIENTS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local shared = milliseconds(ARGV[1])
local idle, lifetime, retry = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local most_sessions, most_unconfirmed, most_of_client = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local most_bytes, common_bytes, unconfirmed_bytes = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
local own_bytes, sweep_rows, sweep_due, prefix = tonumber(ARGV[12]), tonumber(ARGV[13]), ARGV[14] == '1', ARGV[15]
local FIRST_KEY, FIRST_ARGUMENT, ARGUMENTS = 6, 16, 7
local now, uncounted, written = current_time(SIZES, shared, ARGV[2])
local expired = 0

local function kept(lifetime) return math.max(KEPT_BY_SERVER * lifetime, LEAST_KEPT) end
local function size_of(member) return tonumber(redis.call('HGET', SIZES, member) or '0') end
local function count_of(client) return tonumber(redis.call('HGET', CLIENTS, 'client:' .. client) or '0') end

local function forget_client(member)
  local client = redis.call('HGET', CLIENTS, member)
  if not client then return end
  redis.call('HDEL', CLIENTS, member)
  if redis.call('HINCRBY', CLIENTS, 'client:' .. client, -1) <= 0 then
    redis.call('HDEL', CLIENTS, 'client:' .. client)
  end
end

local function remove_lapsed(set, since)
  local members = redis.call('ZRANGEBYSCORE', set, '-inf', '(' .. since, 'LIMIT', 0, sweep_rows)
  for _, member in ipairs(members) do
    -- Before all else: a cluster refuses it, and ends the script, where the record is on its way to another server.
    redis.call('DEL', prefix .. member)
    redis.call('ZREM', set, member)
    redis.call('HINCRBY', SIZES, 'total', 0 - size_of(member)) -- the minus of nothing would be no integer
    redis.call('HDEL', SIZES, member)
    forget_client(member)
  end
  return #members
end

local function sweep()
  local sessions = remove_lapsed(OPEN, now - idle) + remove_lapsed(UNCONFIRMED, now - lifetime)
  expired = expired + sessions
  return sessions + remove_lapsed(ENDED, now - retry)
end

local function until_lapse(set, seconds)
  local oldest = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if #oldest == 0 then return idle end
  return seconds - math.max(0, now - tonumber(oldest[2]))
end

local function until_room() return math.min(until_lapse(OPEN, idle), until_lapse(UNCONFIRMED, lifetime)) end

local function change(key, member, expected, revision, ended, unconfirmed, client, record)
  local head = redis.call('GETRANGE', key, 0, 16)
  local present = #head == 17
  local present_ended = string.sub(head, 9, 9) ~= '\\0'
  if present and struct.unpack('>d', head, 10) < now - (present_ended and retry or idle) then present = false end
  local present_revision = present and string.sub(head, 1, 8) or ''
  -- The same call once more: its answer was lost on the way.
  if present_revision == revision then return WRITTEN, 0, 0 end
  local is_new = not present or present_ended
  if expected ~= present_revision and not (expected == '' and is_new) then return CONFLICT, 0, 0 end
  local was_open, was_unconfirmed, size
  repeat
    was_open = redis.call('ZSCORE', OPEN, member)
    was_unconfirmed = redis.call('ZSCORE', UNCONFIRMED, member)
    size = size_of(member)
    local unconfirmed_others = redis.call('ZCARD', UNCONFIRMED) - (was_unconfirmed and 1 or 0)
    local others = redis.call('ZCARD', OPEN) - (was_open and 1 or 0) + unconfirmed_others
    local bytes_after = size_of('total') - size + #record
    local beyond, limit = nil, 0
    if is_new and not ended then
      if others >= most_sessions then
        beyond, limit = BEYOND_SESSIONS, most_sessions
      elseif unconfirmed and unconfirmed_others >= most_unconfirmed then
        beyond, limit = BEYOND_UNCONFIRMED, most_unconfirmed
      elseif client ~= '' and most_of_client then
        local same = redis.call('HGET', CLIENTS, member) == client and 1 or 0
        if count_of(client) - same >= most_of_client then beyond, limit = BEYOND_CLIENT, most_of_client end
      end
    end
    if not beyond and (is_new or #record > size) then
      limit = unconfirmed and unconfirmed_bytes or common_bytes
      if not is_new and #record <= own_bytes then limit = most_bytes end
      if bytes_after > limit then beyond = BEYOND_BYTES end
    end
    if beyond and sweep() == 0 then return beyond, until_room(), limit end
  until not beyond
  local last = unconfirmed and now - idle + lifetime or now
  redis.call('SET', key, revision .. struct.pack('>Bd', ended and 1 or 0, last) .. record, 'PX',
    kept(ended and retry or idle) + 1000)
  if (was_open or was_unconfirmed) and not present then expired = expired + 1 end
  local set = ended and ENDED or unconfirmed and UNCONFIRMED or OPEN
  for _, other in ipairs({OPEN, UNCONFIRMED, ENDED}) do
    if other ~= set then redis.call('ZREM', other, member) end
  end
  redis.call('ZADD', set, now, member)
  redis.call('HSET', SIZES, member, #record)
  redis.call('HINCRBY', SIZES, 'total', #record - size)
  if ended or is_new or client ~= '' then forget_client(member) end
  if client ~= '' and not ended then
    redis.call('HSET', CLIENTS, member, client)
    redis.call('HINCRBY', CLIENTS, 'client:' .. client, 1)
  end
  return WRITTEN, 0, 0
end

-- Before the changes: a server without memory refuses them until something has been removed.
local may_continue = sweep_due and sweep() >= sweep_rows
local answer = {0, 0, may_continue and 1 or 0}
for number = 0, #KEYS - FIRST_KEY do
  local at = FIRST_ARGUMENT + number * ARGUMENTS
  local code, wait, limit = change(KEYS[FIRST_KEY + number], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3] == '1',
    ARGV[at + 4] == '1', ARGV[at + 5], ARGV[at + 6])
  table.insert(answer, code)
  table.insert(answer, wait)
  table.insert(answer, limit)
end
redis.call('HSET', SIZES, 'clock', string.format('%.3f %.3f %.3f', now, written, uncounted))
-- When every record is gone, so is what counts them. Never sooner than what another worker has asked for.
local last = kept(math.max(idle, retry)) + 2000
for _, key in ipairs({OPEN, UNCONFIRMED, ENDED, SIZES, CLIENTS}) do
  if redis.call('PTTL', key) < last then redis.call('PEXPIRE', key, last) end
end
answer[1], answer[2] = expired, string.format('%.3f', now + uncounted)
return answer
"""
)
"""KEYS: open, unconfirmed, ended, sizes, clients, then each record's.

ARGV: the shared clock in milliseconds or nothing for the server's, the time by the local clock or nothing;
milliseconds after which a session, an unconfirmed one and an ended one expire; the limits of sessions, of unconfirmed
ones and of one client's or nothing; the limits of bytes for small records of open sessions, for others and for
unconfirmed ones, and the size of a small record; rows of one sweep, whether a sweep is due, the prefix of record keys;
then for each record its member, the revision it must have or nothing, the new one, whether the session ends, whether
it is unconfirmed, its client or nothing, and the record. Returns the number of idle sessions that were removed, the
time by local clocks, whether more records may have expired, and for each record a code, milliseconds, and the limit
that it is beyond.
"""

TOTALS = (
    _CODES
    + _NOW
    + """
local shared = milliseconds(ARGV[1])
local idle, lifetime = tonumber(ARGV[2]), tonumber(ARGV[3])
-- By the shared clock alone: a report, on which nothing is removed. The caller may have begun just now.
local time, _, by_shared = stored_time(KEYS[3], shared)
local now = time + by_shared
local waits = -1
for _, kind in ipairs({{KEYS[1], idle}, {KEYS[2], lifetime}}) do
  local oldest = redis.call('ZRANGEBYSCORE', kind[1], now - kind[2], '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if #oldest > 0 then waits = math.max(waits, now - tonumber(oldest[2]), 0) end
end
return {
  redis.call('ZCOUNT', KEYS[1], now - idle, '+inf') + redis.call('ZCOUNT', KEYS[2], now - lifetime, '+inf'),
  tonumber(redis.call('HGET', KEYS[3], 'total') or '0'),
  waits,
}
"""
)
"""KEYS: open, unconfirmed, sizes.

ARGV: the shared clock, idle and lifetime as above. Returns sessions, bytes, milliseconds of the oldest or -1.
"""
