-- Removes a read-write lock, whoever holds it, and leaves it to those in line.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
-- KEYS[2]  the counter of its fencing tokens: a decimal string
-- KEYS[3]  the line: a sorted set of tickets by place
-- ARGV[1]  with Redisson: its channel for releases; '' otherwise
-- ARGV[2]  how grants are published: P, S or C, see the serve step
-- ARGV[3]  how long to keep the counter, in milliseconds; 0 = for ever, as Redisson expects
--
-- Reply, one integer: 1 it was held, 0 it was not.
--
-- May be repeated, with one reserve: somebody may have taken the lock in between, and loses it then. Removing whoever
-- is there is what was asked for.
--
-- DEL would delete anybody's data: a hash is deleted only if all of its fields look like holders, beside its mode. The timeout
-- keys of readers mean nothing without their fields, and end with their leases.

local cursor, seen, holders = '0', 0, 0
repeat
  local page = redis.call('HSCAN', KEYS[1], cursor)
  local fields = page[2]
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    seen = seen + 1
    if string.find(field, '.:.') and string.find(value, '^%d+$') then
      holders = holders + 1
    elseif field ~= 'mode' or value ~= 'read' and value ~= 'write' then
      return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
    end
  end
  cursor = page[1]
until cursor == '0'
if seen == 0 then
  return 0
end
if holders == 0 then
  return redis.error_reply('WRONGTYPE the key holds a hash whose fields are not the holders of a lock')
end
local ttl, mode = -2, nil
