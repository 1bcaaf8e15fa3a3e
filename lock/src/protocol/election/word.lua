-- The step with the word that begins the message of a grant of an election.

local word = 'GE '

