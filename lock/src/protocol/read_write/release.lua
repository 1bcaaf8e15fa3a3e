-- Ends one hold, or takes back its ticket, and leaves the lock to those in line.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- KEYS[4]  the timeout key of this hold, for one that reads
-- ARGV[1]  the hold
-- ARGV[2]  how grants are published: P, S or C, see the serve step
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
-- ARGV[4]  the ticket, if it may be in line; '' if not
-- ARGV[5]  with Redisson: its channel for releases
-- ARGV[6]  with Redisson, for a release that leaves the lock to whoever comes first, if Redisson waits: how many of ours
--          listen on that channel without a ticket; '' for one that grants
--
-- Reply, one integer:  0  the hold was not there: released before, expired, or forced
--                      1  it was there and is gone
--
-- May be repeated: the second time finds nothing and changes nothing.
--
-- A hold that was taken while the slot migrated writes, whatever it was asked for, and one that was being converted may be either:
-- whichever field is there is removed. Another hold's timeout
-- keys are left alone, and so is the expiry of the lock, which other readers may rely on.
--
-- Nothing is changed before a command that a user may not have the right to. So the fields are counted first, and without the
-- right to DEL the lock ends with its last field.
--
-- Nothing that goes wrong with the line or a message may hide that the hold is gone: all of that goes through pcall.
-- Waiters who miss it look again by themselves.
--
-- The code of a release with nobody in line comes first: every function that is made before it costs time.

local call = redis.call
if ARGV[4] and ARGV[4] ~= '' then
  redis.pcall('ZREM', KEYS[3], ARGV[4])
end
local fields, removed = call('HLEN', KEYS[1]), 0
if KEYS[4] then
  removed = call('HDEL', KEYS[1], ARGV[1], ARGV[1] .. ':write')
else
  removed = call('HDEL', KEYS[1], ARGV[1] .. ':write')
  if removed == 0 and call('HDEL', KEYS[1], ARGV[1]) == 1 then
    -- Its downgrade was not answered.
    removed = 1
    local prefix = string.find(KEYS[1], '{', 1, true) and KEYS[1] or '{' .. KEYS[1] .. '}'
    redis.pcall('DEL', prefix .. ':' .. ARGV[1] .. ':rwlock_timeout:1')
  end
end
local is_free = removed > 0 and fields - removed == 1
local deleted = KEYS[4] and (is_free and redis.pcall('DEL', KEYS[1], KEYS[4]) or redis.pcall('DEL', KEYS[4]))
if is_free and type(deleted) ~= 'number' then
  call('HDEL', KEYS[1], 'mode')
end
local waiting = redis.pcall('ZCARD', KEYS[3])
if type(waiting) ~= 'number' or waiting == 0 then
  if is_free and ARGV[5] then
    redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', ARGV[5], KEYS[4] and '0' or '1')
  end
  return removed
end

