"""What a resume would reuse, what it would run, and why: pure rules, shared by the plan and by the resume itself."""
