-- The first step of the release of a leader: the mutex's release follows.
--
-- KEYS[3]  the line of candidates: a sorted set of tickets
-- KEYS[4]  the entry of the leader: a hash of id, n, token, value
-- ARGV[1]  the hold
-- ARGV[2]  how to publish: P, S or C, see the grant step
--
-- The entry of another leader stays. Observers are told if no candidate waits: else the next leader tells them, and they see
-- nobody in between.
--
-- May be repeated: the second time finds nothing. Nothing that goes wrong here may hinder the release.

if redis.pcall('HGET', KEYS[4], 'id') == ARGV[1] then
  redis.pcall('DEL', KEYS[4])
  if redis.pcall('EXISTS', KEYS[3]) ~= 1 then
    redis.pcall(ARGV[2] == 'S' and 'SPUBLISH' or 'PUBLISH', KEYS[4], '')
  end
end

