-- The step that serves the line: from the first ticket on, each whose permits are free becomes a hold, under a short grant
-- lease, and its process alone is told.
--
-- A ticket is the id of the hold that it becomes, `<client>:<number>`, `|<milliseconds>` behind it for a grant lease other than
-- one second, and `p<permits>`. Its client is told on a channel of its own: `GS <number> 0 <time in µs> <grant lease> <key>`,
-- or `GC …` for a semaphore without owners.
-- Modes: 'P' a server, 'S' a cluster with sharded channels, 'C' a cluster without. A client that does not listen is gone, and
-- its ticket is skipped, where the count of receivers can be trusted: in a cluster a dead ticket costs a grant lease. One that polls
-- is not told, and finds out by itself.
--
-- The first that cannot be served yet keeps what is free, under its own id: so large requests are not starved by small ones,
-- nor by Redisson, which knows no line. It keeps them for three looks after its latest. A first that keeps nothing may be of
-- a process that is gone: it keeps what is free for a grant lease, is told to look, `LS …`, and its score gets a half as a
-- mark. A living one looks before what it keeps expires, which takes the mark away; a dead or stopped one holds up those behind
-- it once, and leaves the line when what it kept has expired.
--
-- own      the ticket of a caller that takes the permits itself when its turn comes, for `lease` milliseconds; nil for none
--
-- Returns whether that was served. No error is thrown: the line must not hide the end of a hold.

local function tell(word, client, number, ms)
  local channel = ARGV[4] == 'S' and KEYS[4] .. ':' .. client or 'leasehold:' .. client
  -- Not by `string.format`, which ends a name at a zero byte.
  local message = word .. ' ' .. number .. ' 0 ' .. time[1] .. string.format('%06d ', time[2]) .. ms .. ' ' .. KEYS[1]
  return pcall(ARGV[4] == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Serves one ticket, or lets it keep what is free. Returns true if the next one has its turn.
local function serve_first(ticket, score, is_own, lease)
  local client, number, ms, count, start, polls = identify(ticket)
  -- Another ticket is not one of ours: it is dropped, and so is one for more than there are: its process is told of that when
  -- it looks.
  if not count or count < 1 or count > capacity or ms < 1 or ms > 60000 then
    return pcall('ZREM', KEYS[4], ticket) == 1
  end
  if free <= 0 and not is_own then
    return false
  end
  local was_told = string.find(score, '.', 1, true)
  local kept, until_ms = 0, nil
  if free < count or was_told then
    kept, until_ms = present(start, count)
  end
  local is_served = free + kept >= count
  if is_own then
    if is_served then
      return enter(start, count, lease) and pcall('ZREM', KEYS[4], ticket) == 1
    elseif free + kept > 0 then
      give(start, 0, kept + math.max(free, 0), 3300)
    end
    return false
  end
  if was_told and kept == 0 then
    return pcall('ZREM', KEYS[4], ticket) == 1
  end
  if not is_served and kept > 0 then
    give(start, kept, free, until_ms - now)
    return false
  end
  -- Written before anybody is told: if it cannot be, the ticket stays, and its process takes it by a look.
  local given = is_served and count or free
  if not give(start, 0, given, ms) then
    return false
  end
  local heard = polls and 1 or tell(is_served and word or 'LS', client, number, ms)
  local is_told = type(heard) == 'number' and (heard > 0 or ARGV[4] == 'C' or ARGV[4] == 'S')
  if not is_told then
    take(start, 0, given)
  elseif not is_served then
    pcall('ZADD', KEYS[4], 'XX', score .. '.5', ticket)
    return false
  end
  -- Without the right to publish the ticket stays as well.
  return type(heard) == 'number' and pcall('ZREM', KEYS[4], ticket) == 1
end

local function serve(own, lease)
  for _ = 1, 64 do
    local first = KEYS[4] and settled and pcall('ZRANGE', KEYS[4], 0, 0, 'WITHSCORES')
    local ticket = first and first[1]
    if not ticket then
      return false
    end
    if not serve_first(ticket, first[2], ticket == own, lease) then
      return false
    end
    if ticket == own then
      return true
    end
  end
  return false
end

