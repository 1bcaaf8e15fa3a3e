-- The step of scripts that find the lock free while tickets wait: makes the first ticket the holder, under a short grant
-- lease, and tells its process alone. The enter step before it says what a hold is.
--
-- KEYS[1]  the lock, absent
-- KEYS[2]  the counter of its fencing tokens
-- KEYS[3]  the line: a sorted set of tickets by place
-- mode     'P' a server, 'S' a cluster with sharded channels, 'C' a cluster without
--
-- A ticket is the id of the hold that it becomes, `<client>:<number>`, and `|<milliseconds>` behind it for a grant lease other
-- than one second, and `+` for a block of 64 tokens, of which the one that is told is the first. Its client is told on a channel
-- of its own, `G <number> <token> <time in µs> <grant lease> <key>`. A client that does not listen is gone, and its ticket is
-- skipped, where the count of receivers can be trusted. In mode C a client listens at any node, and in mode S after a failover
-- at the one that was the master, which passes the message on without being counted. So there a dead ticket costs one grant
-- lease. Milliseconds with a leading zero are of a client that polls: it is not told, and finds the hold by itself.
--
-- own      the ticket of a caller that takes the lock itself when its turn comes, for its whole lease ARGV[2]; nil for none
--
-- Returns the ticket, its token and its lease in milliseconds; nil if no ticket was served, and an error if the counter or the
-- line is the reason. No error is thrown: the line must not hide the end of a hold.

local function grant(mode, own)
  local token, refused, now
  local block = 1
  for _ = 1, 64 do
    local first = redis.pcall('ZPOPMIN', KEYS[3])
    local ticket = first[1]
    if not ticket then
      return nil, first.err and first
    end
    local client, number, lease, plus = string.match(ticket, '^(.+):(%d+)|?(%d*)(%+?)$')
    if not token or plus == '+' and block == 1 then
      block = plus == '+' and 64 or 1
      token, refused, now = next_token(redis.call('TIME'), block)
    end
    local told = lease == '' and '1000' or lease
    local polls = lease and string.byte(lease) == 48
    lease = tonumber(told)
    -- Another ticket is not one of ours: it is dropped. A time beyond a minute could be none that a key can have.
    if client and lease > 0 and lease <= 60000 then
      local hold, heard = client .. ':' .. number, refused
      if token then
        -- Before the message: at the source of a migrating slot a lock that has just been released cannot be written.
        if ticket == own then
          told, lease = ARGV[2], tonumber(ARGV[2])
        end
        heard = enter(hold, polls and lease or told)
      end
      if type(heard) == 'number' then
        if ticket ~= own and not polls then
          local channel = mode == 'S' and KEYS[3] .. ':' .. client or 'leasehold:' .. client
          -- Not by `string.format`, which ends a name at a zero byte.
          local message = word .. number .. ' ' .. token .. ' ' .. now .. ' ' .. told .. ' ' .. KEYS[1]
          heard = redis.pcall(mode == 'S' and 'SPUBLISH' or 'PUBLISH', channel, message)
        end
        if type(heard) ~= 'number' or heard == 0 and mode ~= 'C' and mode ~= 'S' then
          leave(hold)
        end
      end
      if type(heard) ~= 'number' then
        -- No token, or no right to publish: the ticket stays, and its process takes the lock at its next look. The line may
        -- be a new key now, without an expiry.
        redis.pcall('ZADD', KEYS[3], first[2], ticket)
        redis.pcall('PEXPIRE', KEYS[3], 60000)
        return nil, refused
      end
      if heard > 0 or mode == 'C' or mode == 'S' then
        return ticket, token, lease
      end
    end
  end
end

