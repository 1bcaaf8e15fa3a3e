-- Counts a latch down by one: once for each request, and once for each participant.
--
-- KEYS[1]  the latch
-- KEYS[2]  the notes on it
-- ARGV[1]  the request: an id never used for another one
-- ARGV[2]  the participant; '' for none
-- ARGV[3]  how to publish: P, S or C, see the grant step
-- ARGV[4]  1 if an absent latch with a noted count was lost, 0 if Redisson may have opened it
-- ARGV[5]  Redisson's channel; absent = none
--
-- Reply: {the count that is left, 1 if something was written, -1 if nothing is known of the latch}; the count is -1 if it was
-- lost.
--
-- May be repeated: a request that was carried out changes nothing again. Everything that can fail comes before the first
-- write.

if noted('o:' .. ARGV[1]) then
  keep()
  return { math.max(count or 0, 0), 1 }
end
if not count or count <= 0 then
  -- Redisson counts below zero and removes that again, without a message.
  return { not count and seen and seen > 0 and ARGV[4] == '1' and -1 or 0, not count and not opened and not seen and -1 or 0 }
end
local participant = ARGV[2] ~= '' and 'p:' .. ARGV[2]
if participant and not anew and noted(participant) then
  keep()
  return { count, 1 }
end
count = call('DECR', KEYS[1])
if count <= 0 then
  call('DEL', KEYS[1])
end
if anew or count <= 0 then
  call('ZREMRANGEBYSCORE', KEYS[2], '-1', '-1')
end
if participant and count > 0 then
  note(ARGV[1], count, anew and next_opening(), '-1', participant)
else
  note(ARGV[1], count, (anew or count <= 0) and next_opening())
end
keep()
if count <= 0 then
  tell('0', ARGV[3], ARGV[5])
end
return { count, 1 }
