-- The step of scripts that find the lock free while somebody waits: makes the first ticket the holder, under a short grant
-- lease, and tells its process; or tells Redisson, if the turn is its.
--
-- KEYS[1]  the lock: a hash of holder -> count, absent
-- KEYS[2]  the counter of its fencing tokens
-- KEYS[3]  the line, KEYS[4] and KEYS[5] with Redisson its queue and its times
-- mode     'P' a server, 'S' a cluster with sharded channels, 'C' a cluster without
--
-- A ticket is the id of the hold that it becomes, `<client>:<number>`, and `|<milliseconds>` behind it for a grant lease other
-- than one second. Its client is told on a channel of its own, `GF <number> <token> <time in µs> <grant lease> <key>`. A client
-- that does not listen is gone, and its tickets are dropped, where the count of receivers can be trusted: in a cluster a
-- client may listen at another node, so a dead one costs a grant lease. Milliseconds with a leading zero are of a client that polls: it
-- is not told, and finds the hold by itself.
--
-- The first ticket of another client behind it is told `N <number> <grant lease>`: so it looks when the grant is over, and a
-- client that is frozen costs those behind it no more than that, however long the line is.
--
-- A look that finds the lock free comes after a holder that ended it not. Where it grants to a client that has the next ticket
-- as well, `?<client>` takes the place of the granted one. The next look finds it there if that client did not end the hold
-- either: then its tickets in front are dropped, and come back with their scores when it looks. So a client that is frozen
-- costs two grant leases, however many wait there. Anybody else drops the mark like a ticket that is not one of ours.
--
-- own      the ticket of a caller that takes the lock itself when its turn comes, for its whole lease ARGV[2]; nil for none
--
-- Returns the ticket, its token and its lease in milliseconds; nil if no ticket was served, and an error if the counter or the
-- line is the reason. No error is thrown: the line must not hide the end of a hold.

local function publish(mode, client, message)
  local channel = mode == 'S' and KEYS[3] .. ':' .. client or 'leasehold:' .. client
  return redis.pcall(mode == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Takes the first ticket out of the line, with its score; nil if the turn is nobody's, or Redisson's.
local function next_ticket(mode)
  if not KEYS[4] then
    local first = redis.pcall('ZPOPMIN', KEYS[3])
    return first[1], first[2], first.err and first
  end
  local who, head, ticket, score = settle()
  if who == 'redisson' then
    tell_redisson(mode, head)
  elseif who == 'ours' then
    redis.pcall('ZREM', KEYS[3], ticket)
    return ticket, score
  end
end

local function client_of(ticket)
  return string.match(ticket, '^(.+):%d')
end

-- Drops the tickets of a client that are first in line.
local function drop_tickets(client)
  for _ = 1, 16 do
    local first, its = redis.pcall('ZRANGE', KEYS[3], 0, 63), {}
    for i = 1, #first do
      if client_of(first[i]) == client then
        its[#its + 1] = first[i]
      elseif i > 1 or string.byte(first[i]) ~= 35 then
        -- A fence stands before its run.
        break
      end
    end
    if #its == 0 then
      return
    end
    redis.pcall('ZREM', KEYS[3], unpack(its))
  end
end

local function warn_next(mode, granted, own, lease, score)
  local behind = redis.pcall('ZRANGE', KEYS[3], 0, 4)
  local next = behind[1] and string.byte(behind[1]) == 35 and behind[2] or behind[1]
  if own and next and client_of(next) == granted then
    redis.pcall('ZADD', KEYS[3], score, '?' .. granted)
  end
  for i = 1, #behind do
    local client, number = string.match(behind[i], '^(.+):(%d+)')
    if client and client ~= granted then
      if behind[i] ~= own then
        publish(mode, client, 'N ' .. number .. ' ' .. lease)
      end
      return
    end
  end
end

local function grant(mode, own)
  local token, refused, now, is_last
  for _ = 1, 64 do
    local ticket, score, failed = next_ticket(mode)
    if not ticket then
      return nil, failed
    end
    local client, number, lease = string.match(ticket, '^(.+):(%d+)|?(%d*)%+?$')
    if not token then
      clock = clock or redis.call('TIME')
      token, refused, now = next_token(clock, 1)
    end
    local silent = own and string.match(ticket, '^%?(.+)$')
    if silent and silent ~= client_of(own) then
      drop_tickets(silent)
    end
    local polls = lease and string.byte(lease) == 48
    lease = lease == '' and 1000 or tonumber(lease)
    -- Another ticket is not one of ours: it is dropped. A time beyond a minute could be none that a key can have.
    if client and lease > 0 and lease <= 60000 then
      local hold, heard = client .. ':' .. number, refused
      if token then
        -- Before the message: at the source of a migrating slot a lock that has just been released cannot be written.
        lease = ticket == own and tonumber(ARGV[2]) or lease
        heard = redis.pcall('HSET', KEYS[1], hold, '1')
      end
      if type(heard) == 'number' then
        redis.call('PEXPIRE', KEYS[1], lease)
        -- Not by `string.format`, which ends a name at a zero byte.
        heard = (polls or ticket == own) and 1
          or publish(mode, client, 'GF ' .. number .. ' ' .. token .. ' ' .. now .. ' ' .. lease .. ' ' .. KEYS[1])
        if heard == 0 and mode ~= 'C' and mode ~= 'S' or type(heard) ~= 'number' then
          redis.call('HDEL', KEYS[1], hold)
          if heard == 0 then
            drop_tickets(client)
          end
        elseif KEYS[4] then
          -- A run that is over leaves the queue.
          local who, first = settle()
          keep_markers(who, first, -1)
          is_last = who == nil
        end
      end
      if type(heard) ~= 'number' then
        -- No token, or no right to publish: the ticket stays, and its process takes the lock at its next look. The line may
        -- be a new key now, without an expiry.
        redis.pcall('ZADD', KEYS[3], score, ticket)
        redis.pcall('PEXPIRE', KEYS[3], 60000)
        return nil, refused
      end
      if heard > 0 or mode == 'C' or mode == 'S' then
        if ticket ~= own and not is_last then
          warn_next(mode, client, own, lease, score)
        end
        return ticket, token, lease
      end
    end
  end
end

