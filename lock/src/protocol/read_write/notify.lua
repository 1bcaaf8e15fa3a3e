-- The step of the first writer in line: tells the clients of the readers that hold the lock that it waits, on the channels of
-- their grants, `W <number of the hold> <key>`.
--
-- KEYS[1]  the lock: a hash of mode -> read or write, and holder -> count
--
-- Clients of Redisson do not listen there. Those of more readers than one page of the hash learn it from their next renewal, and
-- so does one that misses the message.

local function notify_readers(channels)
  local fields, told = redis.call('HSCAN', KEYS[1], 0, 'COUNT', 64)[2], 0
  for i = 1, #fields, 2 do
    local client, number = string.match(fields[i], '^(.+):(%d+)$')
    if client and told < 64 then
      publish(channels, client, 'W ' .. number .. ' ' .. KEYS[1])
      told = told + 1
    end
  end
end

