package main

// seeds are the companies, organisations and projects that the example knows, for both databases. What is there already stays as it is.
const seeds = `
INSERT INTO companies (company_code) VALUES ('TEKIL-TR') ON CONFLICT DO NOTHING;
INSERT INTO organizations (company_id, organization_code)
	SELECT c.company_id, s.column2 FROM (VALUES ('TEKIL-TR', 'IST-01'), ('TEKIL-TR', 'ANK-01')) AS s
	JOIN companies c ON c.company_code = s.column1 WHERE true
	ON CONFLICT DO NOTHING;
INSERT INTO projects (organization_id, project_code, state)
	SELECT o.organization_id, s.column3, s.column4 FROM (VALUES
		('TEKIL-TR', 'IST-01', 'PRJ-1001', 'open'), ('TEKIL-TR', 'IST-01', 'PRJ-1002', 'open'), ('TEKIL-TR', 'IST-01', 'PRJ-1003', 'closed'),
		('TEKIL-TR', 'ANK-01', 'PRJ-1001', 'open')) AS s
	JOIN companies c ON c.company_code = s.column1
	JOIN organizations o ON o.company_id = c.company_id AND o.organization_code = s.column2 WHERE true
	ON CONFLICT DO NOTHING;`
