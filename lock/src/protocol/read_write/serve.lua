-- The step of scripts that may leave the lock to those in line: lets in the first ticket while it can be, under a short grant
-- lease, and tells its process alone. Readers are let in together, a writer alone; the first that cannot be let in keeps back
-- all behind it.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[2]  the lease of `own`
-- channels 'P' a server, 'S' a cluster with sharded channels, 'C' a cluster without
--
-- A ticket is the id of the hold that it becomes, `<client>:<number>`, `|<milliseconds>` behind it for a grant lease other than
-- one second, and then `r` to read, `w` to write. Its client is told on a channel of its own,
-- `GR <number> <token> <time in µs> <grant lease> <key>`. A client that does not listen is gone, and its ticket is skipped, where
-- the count of receivers can be trusted: in a cluster a client may listen at another node, so a dead ticket costs one grant lease.
--
-- own      the ticket of a caller that takes the lock itself when its turn comes, for its whole lease; nil for none
--
-- Returns the token of `own` if that was let in, whether anybody was, for how many milliseconds the first that was not is still
-- to wait at least, and why the counter refused to give `own` a token. No error is thrown: the line must not hide the end of a
-- hold.

local function publish(channels, client, message)
  local channel = channels == 'S' and KEYS[3] .. ':' .. client or 'leasehold:' .. client
  return redis.pcall(channels == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Whether a ticket of this `kind` can be let in now; and for how long not.
local function admits(kind)
  if kind == 'w' then
    return is_free_but_for(nil)
  end
  return ttl == -2 or mode == 'read' or kind ~= 'r', ttl
end

-- Takes back what a client was let in for that does not hear of it.
local function put_out(id, kind)
  if kind == 'r' then
    redis.pcall('DEL', timeout_key(id, 1))
    redis.call('HDEL', KEYS[1], id)
  end
  if kind == 'w' or redis.call('HLEN', KEYS[1]) == 1 then
    redis.call('HDEL', KEYS[1], 'mode', id .. ':write')
    ttl, mode = -2, nil
  end
end

-- Lets the ticket in. Returns its token; false if its client is gone; nil if it can be told nothing, or nothing can be written,
-- and the error if that is the counter's.
local function let_in(channels, is_told, client, number, lease, kind)
  local id, time = client .. ':' .. number, redis.call('TIME')
  local token, refused, entered
  if kind == 'w' then
    token, refused = next_token(time, 1)
  else
    token = token_of_latest_writer()
  end
  if not token then
    return nil, refused
  end
  -- Before the message: at the source of a migrating slot a lock that has just been released cannot be written.
  if kind == 'w' then
    entered = enter_to_write(id, lease)
  else
    entered = enter_to_read(id, lease)
  end
  if not entered then
    return nil
  end
  if not is_told then
    return token
  end
  -- Not by `string.format`, which ends a name at a zero byte.
  local message = 'GR ' .. number .. string.format(' %.0f ', token) .. micros(time) .. ' ' .. lease .. ' ' .. KEYS[1]
  local heard = publish(channels, client, message)
  if type(heard) == 'number' and (heard > 0 or channels == 'C' or channels == 'S') then
    return token
  end
  put_out(id, kind)
  if type(heard) == 'number' then
    return false
  end
end

local function serve(channels, own)
  local own_token, anybody = nil, false
  for _ = 1, 64 do
    local first = redis.pcall('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
    local ticket = first[1]
    if not ticket then
      break
    end
    local client, number, lease, kind = string.match(ticket, '^(.+):(%d+)|?(%d*)%+?([rw])$')
    local is_admitted, wait = admits(kind)
    if not is_admitted then
      return own_token, anybody, wait
    end
    redis.call('ZREM', KEYS[3], ticket)
    -- A leading zero is of a client that polls: it is not told, and finds out by itself.
    local polls = lease and string.byte(lease) == 48
    lease = lease == '' and '1000' or polls and string.match(lease, '[1-9]%d*') or lease
    if ticket == own then
      lease = ARGV[2]
    end
    -- Another ticket is not one of ours: it is dropped. A time beyond a minute could be none that a key can have.
    if client and tonumber(lease) > 0 and (ticket == own or tonumber(lease) <= 60000) then
      local token, refused = let_in(channels, ticket ~= own and not polls, client, number, lease, kind)
      if token == nil then
        -- The ticket stays, and its process takes the lock at its next look. The line may be a new key now, without an expiry.
        redis.pcall('ZADD', KEYS[3], first[2], ticket)
        redis.pcall('PEXPIRE', KEYS[3], 60000)
        return own_token, anybody, 1000, ticket == own and refused
      end
      if token then
        anybody = true
        own_token = ticket == own and token or own_token
      end
    end
  end
  return own_token, anybody, ttl
end

-- Tells Redisson's readers that they may join those that were let in, if nobody waits who would have to wait for them.
local function tell_readers_of_redisson(channels, channel)
  if channel and channel ~= '' and mode == 'read' and others_wait() == 0 then
    redis.pcall(channels == 'S' and 'SPUBLISH' or 'PUBLISH', channel, '1')
  end
end

