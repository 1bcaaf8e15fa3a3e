-- The steps that keep Redisson's queue beside the line. Nothing of this runs without Redisson.
--
-- KEYS[3]  the line: tickets by place, and before each run of them a fence '#<run>'
-- KEYS[4]  Redisson's queue: a list of its holders, and one marker 'leasehold:<run>' for each run of ours
-- KEYS[5]  for each of them the time in milliseconds when Redisson takes it for dead
--
-- Redisson takes the lock only if it is free and nobody else is the first of its queue. So a marker there keeps its clients
-- from passing our tickets, and their entries keep ours from passing them. Its loops are as long as its queue, which does not
-- grow with our tickets: a new run begins only behind an entry of Redisson's. There are 16 runs at most, with one more the
-- tickets join the last.
--
-- Redisson removes only a first that is overdue. A marker is put off by every look, two seconds apart at most. Where Redisson
-- had to wait longer than it expected, or its clock is ahead, it removes a live one; then the next look puts that in front,
-- where it was. So Redisson's clients pass for as long as a look takes to come, then none does.
--
-- All goes through pcall: what is wrong with the line or the queue means that nobody waits there, and must not hide the end
-- of a hold.

-- How long a marker outlives the latest look, in milliseconds; clocks may differ by what the pause between looks leaves.
local MARKER_LIFE = 5000

-- The time of the server, once it is asked for.
local clock

local function now_ms()
  clock = clock or redis.call('TIME')
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

local function tell_redisson(mode, holder)
  local name = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
  redis.pcall(mode == 'S' and 'SPUBLISH' or 'PUBLISH', 'redisson_lock__channel:' .. name .. ':' .. holder, '0')
end

local function put_off(marker, at)
  redis.pcall('ZADD', KEYS[5], string.format('%.0f', at), marker)
end

local function is_fence(member)
  return string.find(member, '^#%d') ~= nil
end

local function marker_of(fence)
  return 'leasehold:' .. string.sub(fence, 2)
end

local function drop_marker(marker)
  redis.pcall('LREM', KEYS[4], 1, marker)
  redis.pcall('ZREM', KEYS[5], marker)
end

-- Takes the marker of a run that is over out of the queue. Who came behind it got a time on top of its own, which is taken off
-- again, as Redisson does when it takes the lock. Otherwise times would run ahead for as long as the queue is never empty, and
-- one of Redisson's that died there would be waited for until then. The first one behind keeps a marker's life at least.
local function end_run(marker)
  local at = redis.pcall('LPOS', KEYS[4], marker)
  local behind = type(at) == 'number' and redis.pcall('LRANGE', KEYS[4], at + 1, -1) or {}
  drop_marker(marker)
  local due = behind[1] and tonumber(redis.pcall('ZSCORE', KEYS[5], behind[1]))
  local ahead = due and math.min(due - now_ms() - MARKER_LIFE, MARKER_LIFE) or 0
  if ahead > 0 then
    for i = 1, #behind do
      redis.pcall('ZADD', KEYS[5], 'XX', 'INCR', -ahead, behind[i])
    end
  end
end

-- The times of markers that a lost queue has left.
local function drop_times()
  local markers = {}
  for run = 0, 15 do
    markers[run + 1] = 'leasehold:' .. run
  end
  redis.pcall('ZREM', KEYS[5], unpack(markers))
end

-- Takes a ticket out of the line, and its run out of the queue if that is over: Redisson would tell it.
local function leave_line(ticket)
  local place = redis.pcall('ZRANK', KEYS[3], ticket)
  if type(place) ~= 'number' then
    return
  end
  local around = redis.pcall('ZRANGE', KEYS[3], math.max(place - 1, 0), place + 1)
  redis.pcall('ZREM', KEYS[3], ticket)
  local before, behind = around[1], around[3]
  if place > 0 and is_fence(before) and (not behind or is_fence(behind)) then
    redis.pcall('ZREM', KEYS[3], before)
    end_run(marker_of(before))
  end
end

-- Before Redis 6.0.6 it cannot be asked, and counts as there.
local function is_queued(marker)
  return redis.pcall('LPOS', KEYS[4], marker) ~= false
end

-- Puts a marker at an end of the queue, `where` being LPUSH or RPUSH. One that is left of a run that is gone goes.
local function queue_marker(where, marker, at)
  redis.pcall('LREM', KEYS[4], 0, marker)
  redis.pcall(where, KEYS[4], marker)
  put_off(marker, at)
end

-- A new run that begins at `score`; nil if there are 16.
local function begin_run(score, where, at)
  for run = 0, 15 do
    if redis.pcall('ZADD', KEYS[3], 'NX', score, '#' .. run) == 1 then
      queue_marker(where, 'leasehold:' .. run, at)
      return run
    end
  end
end

-- The run for a new ticket at the end of the line; nil if it is not known.
local function run_at_end(score, is_line_empty)
  local last = redis.pcall('LINDEX', KEYS[4], -1)
  local is_there = type(last) == 'string'
  local run = is_there and string.match(last, '^leasehold:(%d+)$')
  if run then
    redis.pcall('ZADD', KEYS[3], 'NX', score, '#' .. run)
    return tonumber(run)
  end
  -- Without a queue, which got lost, it belongs to the run that is last.
  if is_there or is_line_empty then
    local due = is_there and tonumber(redis.pcall('ZSCORE', KEYS[5], last)) or 0
    return begin_run(score, 'RPUSH', math.max(now_ms(), due) + MARKER_LIFE)
  end
end

-- The run of the ticket with this score, which was `known` once; -1 if there is none.
local function run_of(score, known)
  local function begins(run)
    local at = tonumber(redis.pcall('ZSCORE', KEYS[3], '#' .. run))
    return at and at <= score and at
  end
  if known and begins(known) then
    return known
  end
  local found, at = -1, -1
  for run = 0, 15 do
    local start = begins(run)
    if start and start > at then
      found, at = run, start
    end
  end
  return found
end

-- The first in line has no fence: it was put back, or its fence is lost. It gets one, in front, but where the marker of the
-- run it was in is still queued.
local function fence_first(score, known)
  if known and is_queued('leasehold:' .. known)
    and redis.pcall('ZADD', KEYS[3], 'NX', score, '#' .. known) == 1 then
    return
  end
  if begin_run(score, 'LPUSH', now_ms() + MARKER_LIFE) then
    return
  end
  -- All fences are in use: the first run begins with it.
  local first, at
  for run = 0, 15 do
    local start = tonumber(redis.pcall('ZSCORE', KEYS[3], '#' .. run))
    if start and (not at or start < at) then
      first, at = run, start
    end
  end
  if first then
    redis.pcall('ZADD', KEYS[3], score, '#' .. first)
  end
end

-- Redisson's first: whether it goes on standing there. One that is overdue goes, and one without a time, which Redisson would
-- wait for without end, gets one.
local function keeps_standing(holder)
  local due = redis.pcall('ZSCORE', KEYS[5], holder)
  if due and tonumber(due) and tonumber(due) <= now_ms() then
    drop_marker(holder)
    return false
  end
  if not due then
    local held = tonumber(redis.pcall('PTTL', KEYS[1])) or 0
    put_off(holder, now_ms() + math.max(held, 0) + MARKER_LIFE)
  end
  return true
end

-- Brings the line and the queue together, and says whose turn is next: 'redisson' with the holder that is first, 'ours' with
-- the marker, the ticket and its score, 'unclear' after too many that were overdue, or nil if nobody waits. `known` is the run
-- of the ticket that looks.
local function settle(known)
  local dropped = false
  for _ = 1, 32 do
    local first = redis.pcall('ZRANGE', KEYS[3], 0, 1, 'WITHSCORES')
    local fence, ticket = first[1], first[3]
    local head = redis.pcall('LINDEX', KEYS[4], 0)
    local is_broken = type(head) == 'table'
    head = type(head) == 'string' and head
    local marker = fence and is_fence(fence) and marker_of(fence)
    if fence and not marker then
      fence_first(first[2], known)
    elseif marker and (not ticket or is_fence(ticket)) then
      redis.pcall('ZREM', KEYS[3], fence)
      end_run(marker)
      dropped = true
    elseif marker and (head == marker or is_broken) then
      return 'ours', marker, ticket, first[4]
    elseif head and string.find(head, '^leasehold:%d+$') then
      -- Of a run that is gone.
      end_run(head)
      dropped = true
    elseif head then
      if keeps_standing(head) then
        if not marker or is_queued(marker) then
          return 'redisson', head
        end
        queue_marker('LPUSH', marker, now_ms() + MARKER_LIFE)
      end
    elseif marker then
      queue_marker('RPUSH', marker, now_ms() + MARKER_LIFE)
    else
      if dropped then
        drop_times()
      end
      return nil
    end
  end
  return 'unclear'
end

-- Puts off the time of the first marker, and of that of the run that looks, which is due after those before it.
local function keep_markers(who, first, run)
  if who == 'ours' then
    put_off(first, now_ms() + MARKER_LIFE)
  end
  local marker = 'leasehold:' .. run
  if run < 0 or who == 'ours' and first == marker then
    return
  end
  local at = redis.pcall('LPOS', KEYS[4], marker)
  if type(at) == 'number' and at > 0 then
    local before = redis.pcall('LINDEX', KEYS[4], at - 1)
    local due = tonumber(redis.pcall('ZSCORE', KEYS[5], before)) or 0
    put_off(marker, math.max(now_ms(), due) + MARKER_LIFE)
  end
end

